//! The kernel's state, as far as it concerns us.

use std::collections::{BTreeMap, BTreeSet};

use crate::masquerade::PortList;

use super::{Address, Hook, Link, MapEntry, MapKey, Neighbour, Route, Rule, Sysctl};

/// What hangs at a hook of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attachment {
    /// The program that this agent loaded.
    Current,
    /// A program of ours that an earlier agent loaded; it works until it is replaced.
    Stale,
    /// A leftover of ours that does not run, such as the pin of a link whose device went.
    Dead,
}

/// The kernel's state, as far as it concerns us. Ordered, so that it compares and prints the same
/// way every time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every device of the host's namespace, by index.
    pub links: BTreeMap<u32, Link>,
    /// Every address on them.
    pub addresses: BTreeSet<Address>,
    /// Every route of the tables that are ours; foreign shapes among them are left out.
    pub routes: BTreeSet<Route>,
    /// Every rule of both families.
    pub rules: BTreeSet<Rule>,
    /// Every permanent neighbour entry.
    pub neighbours: BTreeSet<Neighbour>,
    /// The sysctls that we set, where they exist.
    pub sysctls: BTreeMap<Sysctl, String>,
    /// The ports that the host's automatic ports keep off; none where the kernel does not tell.
    pub reserved_ports: Option<PortList>,
    /// Every entry of the datapath's maps.
    pub maps: BTreeMap<MapKey, MapEntry>,
    /// Every attachment of ours; a hook without an entry has none.
    pub attachments: BTreeMap<Hook, Attachment>,
}
