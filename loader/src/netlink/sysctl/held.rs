//! Sysctls that are read again and again. Their files stay open: to find one by its path, the kernel
//! compares it with those of every network namespace (`proc_sys_compare` in
//! `fs/proc/proc_sysctl.c`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use ipam::Family;

use super::{netfilter_path, path, reserved_path};
use crate::intent::masquerade::PortList;
use crate::kernel::{Sysctl, SysctlScope};

/// The sysctls of the node as a whole that we manage.
const NODE: [Sysctl; 3] = [
    Sysctl {
        family: Family::V4,
        scope: SysctlScope::Family,
        name: "ip_forward",
    },
    Sysctl {
        family: Family::V4,
        scope: SysctlScope::All,
        name: "send_redirects",
    },
    Sysctl {
        family: Family::V6,
        scope: SysctlScope::All,
        name: "forwarding",
    },
];

/// Bytes of the first attempt to read a sysctl.
const ROOM: usize = 1024;

/// A sysctl whose file stays open once it was read. It is that of the network namespace in which the
/// file was opened.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    file: Option<File>,
}

impl Held {
    /// A sysctl that was not read yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// A sysctl of netfilter that was not read yet.
    pub(crate) fn netfilter(name: &str) -> Self {
        Self::new(netfilter_path(name))
    }

    /// The present value without the newline; none where there is no such sysctl.
    pub(crate) fn read(&mut self) -> Option<String> {
        if let Some(value) = self.file.as_ref().and_then(|file| value(file).ok()) {
            return Some(value);
        }
        // The file of a kernel module that was loaded again is another one.
        self.file = File::open(&self.path).ok();
        value(self.file.as_ref()?).ok()
    }
}

/// The value of an open sysctl.
///
/// The kernel answers one read, and cuts off a list of ports at the end of the buffer
/// (`proc_do_large_bitmap` in kernel/sysctl.c). A full buffer is therefore read again with more room.
fn value(file: &File) -> io::Result<String> {
    let mut buffer = vec![0; ROOM];
    loop {
        let length = file.read_at(&mut buffer, 0)?;
        if length < buffer.len() {
            buffer.truncate(length);
            let text = String::from_utf8(buffer).map_err(io::Error::other)?;
            return Ok(text.trim().to_owned());
        }
        buffer.resize(buffer.len() * 2, 0);
    }
}

/// The sysctls of the node as a whole.
#[derive(Debug)]
pub(crate) struct NodeSysctls([(Sysctl, Held); NODE.len()]);

impl NodeSysctls {
    /// Sysctls that were not read yet.
    pub(crate) fn new() -> Self {
        Self(NODE.map(|sysctl| {
            let device = (sysctl.scope == SysctlScope::All).then_some("all");
            (sysctl, Held::new(path(sysctl.family, device, sysctl.name)))
        }))
    }

    /// The present values; one that is missing, because a family is off, is left out.
    pub(crate) fn read(&mut self) -> BTreeMap<Sysctl, String> {
        let all = self.0.iter_mut();
        all.filter_map(|(sysctl, held)| Some((*sysctl, held.read()?)))
            .collect()
    }
}

/// The sysctls of the host's automatic ports.
#[derive(Debug)]
pub struct PortSysctls {
    reserved: Held,
    range: Held,
}

impl PortSysctls {
    /// Sysctls that were not read yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            reserved: Held::new(reserved_path()),
            range: Held::new(path(Family::V4, None, "ip_local_port_range")),
        }
    }

    /// The ports that the host's automatic ports exclude; none if they are unknown.
    #[must_use]
    pub fn reserved(&mut self) -> Option<PortList> {
        self.reserved.read()?.parse().ok()
    }

    /// The range of the host's automatic ports, by which also IPv6 goes.
    #[must_use]
    pub fn automatic(&mut self) -> Option<PortList> {
        let text = self.range.read()?;
        let mut ends = text.split_whitespace().map(str::parse);
        let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
        Some(PortList::new([(first, last)]))
    }
}

impl Default for PortSysctls {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_held_file_shows_its_present_value_however_long_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sysctl");
        let mut held = Held::new(path.clone());
        assert_eq!(held.read(), None);
        for length in [1, ROOM - 1, ROOM, 3 * ROOM] {
            let text = "7".repeat(length);
            fs::write(&path, format!("{text}\n")).unwrap();
            assert_eq!(held.read(), Some(text));
        }
    }
}
