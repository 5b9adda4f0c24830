//! Every question there is, against a table that says the answers.

use std::format;
use std::string::{String, ToString as _};
use std::vec::Vec;

use super::*;

/// One line for each rule; `*` stands for anything, `|` between words for any of them. Exactly one line answers a question, so no line
/// leans on the order of others, and none is left over.
///
/// Columns: flow; what becomes of metadata packets, `-` where the destination is no metadata
/// service; exempt class of the destination; what the pool says; whether the family is on; what
/// the packet is to an unknown flow; the answer.
const TABLE: &str = "
translated  *        *           *       *    *         known
inbound     *        *           -|skip  *    *         inbound
inbound     *        *           always  *    *         drop:no-flow

none        block    *           *       *    *         drop:metadata-blocked
none        own      *           -|skip  *    *         exempt-link-local
none        own      *           always  *    opens     translate:primary
none        own      *           always  *    accepts   drop:no-flow
none        own      *           always  *    refuses   drop:no-flow
none        own      *           always  *    belongs   drop:no-flow
none        own      *           always  *    portless  drop:protocol-without-ports
none        primary  *           *       *    opens     translate:primary
none        primary  *           -|skip  *    accepts   note-inbound
none        primary  *           -|skip  *    refuses   inbound
none        primary  *           always  *    accepts   drop:no-flow
none        primary  *           always  *    refuses   drop:no-flow
none        primary  *           *       *    belongs   drop:no-flow
none        primary  *           *       *    portless  drop:protocol-without-ports

none        -        vpc         -|skip  *    *         exempt-vpc
none        -        native      -|skip  *    *         exempt-native
none        -        masq-agent  -|skip  *    *         exempt-masq-agent
none        -        link-local  -|skip  *    *         exempt-link-local

none        -        *           always  off  *         drop:no-translation-address
none        -        *           always  on   opens     translate:external
none        -        *           always  on   accepts   drop:no-flow
none        -        *           always  on   refuses   drop:no-flow
none        -        *           always  on   belongs   drop:no-flow
none        -        *           always  on   portless  drop:protocol-without-ports

none        -        -           skip    *    *         skip-pool
none        -        -           -       off  *         off
none        -        -           -       on   opens     translate:external
none        -        -           -       on   accepts   note-inbound
none        -        -           -       on   refuses   inbound
none        -        -           -       on   belongs   drop:no-flow
none        -        -           -       on   portless  drop:protocol-without-ports
";

/// A question in the table's words.
fn words(input: &PolicyInput) -> [&'static str; 6] {
    let class = input.destination;
    let has = |other| class.contains(other);
    [
        match input.flow {
            KnownFlow::None => "none",
            KnownFlow::Translated => "translated",
            KnownFlow::Inbound => "inbound",
        },
        match input.metadata {
            _ if !has(DestinationClass::METADATA) => "-",
            MetadataPolicy::Primary | MetadataPolicy::Stack => "primary",
            MetadataPolicy::Own => "own",
            MetadataPolicy::Block => "block",
        },
        // The most telling class is named where there are several.
        [
            (DestinationClass::VPC, "vpc"),
            (DestinationClass::NATIVE, "native"),
            (DestinationClass::MASQ_AGENT, "masq-agent"),
            (DestinationClass::LINK_LOCAL, "link-local"),
        ]
        .into_iter()
        .find_map(|(class, name)| has(class).then_some(name))
        .unwrap_or("-"),
        match input.pool {
            PoolPolicy::Masquerade => "-",
            PoolPolicy::Skip => "skip",
            PoolPolicy::Always => "always",
        },
        if input.is_on { "on" } else { "off" },
        match input.role {
            FlowRole::New => "opens",
            FlowRole::Accepts => "accepts",
            FlowRole::Refuses => "refuses",
            FlowRole::Existing => "belongs",
            FlowRole::Portless => "portless",
        },
    ]
}

/// A decision in the table's words.
fn answer(decision: Decision) -> String {
    match decision {
        Decision::Untranslated(why) => why.name().to_string(),
        Decision::NoteInbound => "note-inbound".to_string(),
        Decision::KnownTranslation => "known".to_string(),
        Decision::Translate(Exit::Primary) => "translate:primary".to_string(),
        Decision::Translate(Exit::External) => "translate:external".to_string(),
        Decision::Drop(reason) => format!("drop:{}", reason.name()),
    }
}

/// Every combination of the decision's inputs, the unused classes included.
fn questions() -> Vec<PolicyInput> {
    const CLASSES: [DestinationClass; 7] = [
        DestinationClass::BLOCK,
        DestinationClass::SERVICE,
        DestinationClass::VPC,
        DestinationClass::NATIVE,
        DestinationClass::MASQ_AGENT,
        DestinationClass::LINK_LOCAL,
        DestinationClass::METADATA,
    ];
    let mut questions = Vec::new();
    for flow in [KnownFlow::None, KnownFlow::Translated, KnownFlow::Inbound] {
        for set in 0..1_u32 << CLASSES.len() {
            let destination = CLASSES
                .into_iter()
                .enumerate()
                .filter(|(bit, _)| set & (1 << bit) != 0)
                .fold(DestinationClass::NONE, |all, (_, one)| all.union(one));
            for role in FlowRole::ALL {
                for metadata in MetadataPolicy::ALL {
                    for pool in PoolPolicy::ALL {
                        for is_on in [false, true] {
                            questions.push(PolicyInput {
                                flow,
                                destination,
                                pool,
                                is_on,
                                metadata,
                                role,
                            });
                        }
                    }
                }
            }
        }
    }
    questions
}

#[test]
fn every_question_has_the_tables_answer() {
    let rows: Vec<Vec<&str>> = TABLE
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect();
    let mut used = std::vec![0; rows.len()];
    let questions = questions();
    assert_eq!(questions.len(), 3 * 128 * 5 * 4 * 6);
    for input in &questions {
        let words = words(input);
        let fits = |row: &[&str]| {
            row.iter()
                .zip(words)
                .all(|(cell, word)| *cell == "*" || cell.split('|').any(|one| one == word))
        };
        let fitting: Vec<usize> = (0..rows.len()).filter(|row| fits(&rows[*row])).collect();
        let [row] = fitting[..] else {
            panic!("{words:?}: {} lines answer", fitting.len());
        };
        used[row] += 1;
        assert_eq!(answer(decide(input)), rows[row][6], "{input:?}");
    }
    for (row, times) in rows.iter().zip(used) {
        assert!(times > 0, "no input has the answer {row:?}");
    }
}

#[test]
fn what_policy_says_is_what_is_decided_on_an_unknown_flow() {
    for input in questions() {
        if input.flow != KnownFlow::None {
            continue;
        }
        let decision = decide(&input);
        match rule(&input) {
            PolicyOutcome::Untranslated(why) => assert_eq!(decision, Decision::Untranslated(why)),
            PolicyOutcome::Drop(reason) => assert_eq!(decision, Decision::Drop(reason)),
            PolicyOutcome::Translated(exit) if input.role == FlowRole::New => {
                assert_eq!(decision, Decision::Translate(exit));
            }
            PolicyOutcome::Translated(_) => assert!(!matches!(decision, Decision::Translate(_))),
        }
    }
}
