//! `towpath masq explain` must explain a packet as the programs handle it.

use std::env;

use anyhow::Result;
use bpf_tests::fuzz::{Explained, Seen, Variant, make_devices};
use testkit::testrun::private_namespace;

/// The first seed.
const FIRST: u64 = 0x6578_706c_6169_6e00;
/// Nodes of each variant in an ordinary run, and in a full one.
const SHORT: u64 = 40;
const FULL: u64 = 2_000;
/// Answers that must occur in a run, or it proves little.
const WANTED: [(&str, &str); 20] = [
    ("Translated", "translated"),
    ("Untranslated", "exempt-vpc"),
    ("Untranslated", "exempt-native"),
    ("Untranslated", "exempt-masq-agent"),
    ("Untranslated", "exempt-link-local"),
    ("Untranslated", "skip-pool"),
    ("Untranslated", "off"),
    ("Untranslated", "inbound"),
    ("Delivered", "local"),
    ("Stack", "host"),
    ("Stack", "stack"),
    ("Stack", "stack-flow"),
    ("Dropped", "eni-not-ready"),
    ("Dropped", "no-endpoint"),
    ("Dropped", "flows-full"),
    ("Dropped", "quota-exceeded"),
    ("Dropped", "no-port"),
    ("Dropped", "no-translation-address"),
    ("Dropped", "metadata-blocked"),
    ("Dropped", "sctp-port-taken"),
];

fn run(variant: &Variant, nodes: u64) -> Result<Result<Seen, String>> {
    let mut explained = Explained::new(variant)?;
    if *variant == Variant::FEW_PORTS
        && let Some(what) = explained.run_out_of_ports()?
    {
        return Ok(Err(what));
    }
    for seed in FIRST..FIRST + nodes {
        if let Some(what) = explained.run(seed)? {
            return Ok(Err(what));
        }
    }
    Ok(Ok(explained.seen))
}

#[test]
fn what_is_explained_is_what_the_programs_do() {
    let is_full = env::var_os("TOWPATH_FULL").is_some();
    let nodes = if is_full { FULL } else { SHORT };
    private_namespace().unwrap();
    make_devices().unwrap();
    let mut seen = Seen::new();
    let few = [Variant::TINY, Variant::FEW_PORTS];
    for variant in Variant::ALL.iter().chain(&few) {
        for (answer, times) in run(variant, nodes)
            .unwrap()
            .unwrap_or_else(|what| panic!("{what}"))
        {
            *seen.entry(answer).or_default() += times;
        }
    }
    for ((verdict, why), times) in &seen {
        println!("{verdict:14} {why:24} {times}");
    }
    for (verdict, why) in WANTED {
        let key = (verdict.to_owned(), why.to_owned());
        assert!(seen.contains_key(&key), "nothing came to {verdict}, {why}");
    }
}
