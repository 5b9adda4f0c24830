//! Detection of service NAT on the host: of anything that could change the addresses of a packet
//! from or to a pod (`services.nat: auto`).
//!
//! Looked for is what has to be there before a single rule can act, not the rules: a chain or table
//! of NAT. So it is cheap, needs no knowledge of kube-proxy's modes, and errs to the
//! side of "yes". A nat table of the older iptables is there as one, so masquerade alone makes it
//! seen too, and so does `iptables-legacy -t nat -L`.

mod chains;
mod missed;
mod notes;
mod renewal;
mod tracker;

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;

pub use self::missed::Missed;
pub use self::notes::{is_translated, note};
pub use self::renewal::{Notes, Renewal};
pub use self::tracker::KernelTracker;
use crate::netfilter::untracked;

/// The findings in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence(String);

impl fmt::Display for Evidence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Repeated detection of NAT.
#[derive(Debug, Default)]
pub struct Detector {
    /// True if the kernel said that it has no `nf_tables`.
    lacks_nf_tables: bool,
    /// The generation of nftables' rules in which no chain did NAT.
    searched: Option<u32>,
}

/// Not `/proc/net`, which is of the namespace of the process's first thread.
const PROC_NET: &str = "/proc/thread-self/net";

/// The older iptables' lists of tables, and the program that one sees them with.
const LEGACY: [(&str, &str); 2] = [
    ("ip_tables_names", "iptables-legacy"),
    ("ip6_tables_names", "ip6tables-legacy"),
];

/// Where `nf_tables` shows once it is loaded, where it is a module.
pub(crate) const NF_TABLES_MODULE: &str = "/sys/module/nf_tables";

impl Detector {
    /// The first evidence of NAT in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel cannot be queried. A missing part of the kernel is no error, since it does no
    /// NAT.
    pub fn evidence(&mut self) -> anyhow::Result<Option<Evidence>> {
        for (file, program) in LEGACY {
            if proc_net(file)?.is_some_and(|names| has_nat_table(&names)) {
                return Ok(Some(Evidence(format!("{program} table nat"))));
            }
        }
        if proc_net("ip_vs")?.is_some_and(|services| has_virtual_service(&services)) {
            return Ok(Some(Evidence("IPVS".to_owned())));
        }
        Ok(self.chain()?.map(Evidence))
    }

    fn chain(&mut self) -> anyhow::Result<Option<String>> {
        // Each question would have the kernel start modprobe again.
        if self.lacks_nf_tables && !Path::new(NF_TABLES_MODULE).exists() {
            return Ok(None);
        }
        let opened = untracked::open()?;
        self.lacks_nf_tables = opened.is_none();
        let Some((mut socket, generation)) = opened else {
            return Ok(None);
        };
        if self.searched == Some(generation) {
            return Ok(None);
        }
        let found = chains::first_nat_chain(&mut socket).context("read the chains of nftables")?;
        self.searched = found.is_none().then_some(generation);
        Ok(found)
    }
}

/// A file of the calling thread's network namespace; none where the part of the kernel is missing.
fn proc_net(name: &str) -> anyhow::Result<Option<String>> {
    let path = Path::new(PROC_NET).join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// True if a list of tables, one in each line, names `nat`.
fn has_nat_table(names: &str) -> bool {
    names.lines().any(|name| name == "nat")
}

/// True if IPVS has a service. Its file begins with a heading as soon as the module is there;
/// services begin with their protocol, their real servers with an arrow (`ip_vs_info_seq_show` in
/// `net/netfilter/ipvs/ip_vs_ctl.c`).
fn has_virtual_service(services: &str) -> bool {
    services.lines().any(|line| {
        let word = line.split_whitespace().next();
        word.is_some_and(|word| ["TCP", "UDP", "SCTP", "FWM"].contains(&word))
    })
}

#[cfg(test)]
mod tests;
