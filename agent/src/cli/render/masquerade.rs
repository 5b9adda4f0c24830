//! The masquerade policy and explanations, as text.

use std::net::IpAddr;

use api::ids::EniNumber;
use api::types::Verdict;
use api::types::{Explanation, FamilyMasquerade, FileStatus, MasqueradeStatus, Onward};
use terminal::{Paint, Table, Tone, one_line};

/// The inputs of the decision.
pub(in crate::cli) fn masquerade(status: &MasqueradeStatus, paint: Paint) -> String {
    let on = |yes: bool| if yes { "on" } else { "off" };
    let mut out = format!(
        "Masquerade: IPv4 {}, IPv6 {}\nExternal: {}\nMetadata: {}\n",
        on(status.ipv4),
        on(status.ipv6),
        status.external.name(),
        status.metadata,
    );
    if status.only_default_pool {
        out += "Only the default pool is masqueraded\n";
    }
    for (name, file) in [
        ("Pool documents", &status.pool_documents),
        ("ip-masq-agent", &status.ip_masq_agent),
    ] {
        if let Some(FileStatus {
            path,
            generation,
            error,
        }) = file
        {
            let path = path.display();
            let line = format!("{name}: {path}, generation {generation}\n");
            out += &line;
            if let Some(error) = error {
                out += &paint.text(Tone::Warning, &one_line(&format!("  {error}")));
                out.push('\n');
            }
        }
    }
    for note in &status.notes {
        out += &one_line(&format!("  note: {note}"));
        out.push('\n');
    }
    out += "\nENIs\n";
    out += &enis(status, paint);
    out += "\nPools\n";
    out += &pools(status, paint);
    out += "\nDestinations that are not masqueraded\n";
    let mut table = Table::new(["CIDR", "WHY", "FROM"]);
    for exempt in &status.view.exempt {
        table.row(
            Tone::Plain,
            [
                exempt.cidr.to_string(),
                exempt.class.clone(),
                exempt.source.clone(),
            ],
        );
    }
    out + &table.render(paint)
}

fn enis(status: &MasqueradeStatus, paint: Paint) -> String {
    let mut table = Table::new([
        "ENI",
        "ID",
        "PUBLIC",
        "FAMILY",
        "TRANSLATED TO",
        "LEAVES BY",
        "WHY",
    ]);
    for eni in &status.view.enis {
        for (family, masquerade) in [("IPv4", &eni.ipv4), ("IPv6", &eni.ipv6)] {
            let FamilyMasquerade {
                address,
                no_address,
                external,
                why,
            } = masquerade;
            let why = no_address.as_ref().map_or(why.clone(), |reason| {
                if why.contains(reason.as_str()) {
                    why.clone()
                } else {
                    format!("{why}; {reason}")
                }
            });
            table.row(
                Tone::Plain,
                [
                    eni.number.to_string(),
                    eni.id.clone().unwrap_or_default(),
                    eni.public.map(|ip| ip.to_string()).unwrap_or_default(),
                    family.to_owned(),
                    address.map(|ip| ip.to_string()).unwrap_or_default(),
                    format!("ENI {external}"),
                    why,
                ],
            );
        }
    }
    table.render(paint)
}

fn pools(status: &MasqueradeStatus, paint: Paint) -> String {
    let mut table = Table::new(["POLICY", "MASQUERADE", "WHY", "CIDRS HERE", "FROM"]);
    for pool in &status.view.pools {
        let (masquerade, why, source) = match &pool.policy {
            Some(policy) => (
                if policy.skip_masquerade {
                    "skip"
                } else {
                    "yes"
                },
                policy.why.clone(),
                policy.source.clone().unwrap_or_default(),
            ),
            None => ("as before", "not known yet".to_owned(), String::new()),
        };
        let cidrs: Vec<_> = pool.cidrs.iter().map(ToString::to_string).collect();
        let row = [
            pool.name.clone(),
            masquerade.to_owned(),
            why,
            cidrs.join(","),
            source,
        ];
        table.row(Tone::Plain, row);
    }
    table.render(paint)
}

/// The fate of a packet.
pub(in crate::cli) fn explanation(explanation: &Explanation, paint: Paint) -> String {
    let Explanation {
        steps,
        verdict,
        why,
        eni,
        snat,
        port,
        then,
    } = explanation;
    let tone = match verdict {
        Verdict::Translated | Verdict::Untranslated | Verdict::Delivered | Verdict::Stack => {
            Tone::Good
        }
        Verdict::Dropped => Tone::Bad,
    };
    let mut what = outcome(*verdict, (*eni, *snat, *port), why);
    if let Some(Onward {
        verdict,
        why,
        eni,
        snat,
        port,
    }) = then
    {
        what += ", and unless a rule of the host drops it ";
        what += &outcome(*verdict, (*eni, *snat, *port), why);
    }
    let mut out = paint.text(tone, &what);
    out += "\n\n";
    let mut table = Table::new(["STEP", "QUESTION", "ANSWER"]);
    for (number, step) in (1..).zip(steps) {
        table.row(
            Tone::Plain,
            [
                number.to_string(),
                step.question.clone(),
                step.answer.clone(),
            ],
        );
    }
    out + &table.render(paint)
}

/// The fate of a packet, its ENI and source address, and the reason.
fn outcome(
    verdict: Verdict,
    (eni, snat, port): (Option<EniNumber>, Option<IpAddr>, Option<u16>),
    why: &str,
) -> String {
    let what = match verdict {
        Verdict::Translated => "leaves translated",
        Verdict::Untranslated => "leaves untranslated",
        Verdict::Delivered => "is delivered on this node",
        Verdict::Stack => "goes to the host's stack",
        Verdict::Dropped => "is dropped",
    };
    let eni = eni.map(|eni| format!(" by ENI {eni}")).unwrap_or_default();
    let snat = match (snat, port) {
        (Some(snat), Some(port)) => format!(" as {snat} port {port}"),
        (Some(snat), None) => format!(" as {snat}"),
        (None, _) => String::new(),
    };
    format!("{what}{eni}{snat}: {why}")
}
