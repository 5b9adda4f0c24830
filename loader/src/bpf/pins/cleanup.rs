//! Taking everything of ours off the node.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::bpf::BpfOptions;
use crate::bpf::attach::tc::TcSocket;
use crate::bpf::attach::{directions, is_ours, remove, remove_unused_qdisc};
use crate::bpf::pins::Pins;
use crate::constants;

/// The objects that a clean-up removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Our TCX links: program and device index.
    pub links: Vec<String>,
    /// Our clsact filters: program and device index.
    pub filters: Vec<String>,
    /// Indexes of the devices whose clsact qdisc was ours alone.
    pub qdiscs: Vec<u32>,
    /// Other pins, such as those of maps, relative to the pin folder.
    pub pins: Vec<String>,
}

impl Removed {
    /// True if there was nothing to remove.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Detaches everything of ours in the current network namespace and removes our version folders
/// below the pin folder, whatever version made them. Nothing else is touched.
///
/// # Errors
/// When the kernel refuses; what was removed before stays removed, and a second run goes on.
pub fn remove_pins(options: &BpfOptions) -> Result<Removed> {
    let pins = Pins::new(&options.pin_root);
    let socket = TcSocket::open()?;
    let mut removed = Removed::default();
    for qdisc in socket.ingress_qdiscs()? {
        for &direction in directions(&qdisc.kind) {
            let filters = socket.filters(qdisc.ifindex, direction)?;
            let ours = filters.iter().find_map(|filter| is_ours(filter, direction));
            if let Some(program) = ours {
                socket.delete_filter(
                    qdisc.ifindex,
                    direction,
                    constants::TC_PRIORITY,
                    constants::TC_HANDLE,
                )?;
                removed
                    .filters
                    .push(format!("{}-{}", program.name(), qdisc.ifindex));
            }
        }
        if remove_unused_qdisc(&socket, &pins, qdisc.ifindex)? {
            removed.qdiscs.push(qdisc.ifindex);
        }
    }
    for pin in pins.links()? {
        remove(&pin.path)?;
        removed
            .links
            .push(format!("{}-{}", pin.hook.program.name(), pin.hook.ifindex));
    }
    removed.pins = pins.remove_all()?;
    Ok(removed)
}
