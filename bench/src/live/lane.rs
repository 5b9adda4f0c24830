//! One path through one node.

use anyhow::Result;
use testkit::fabric::{Netns, POD_INTERFACE, Place};

/// A client, a server, and the node between them.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// The end that sends requests.
    pub client: Place<'a>,
    /// The end that answers.
    pub server: Place<'a>,
}

/// The client's device: a pod's, or the primary ENI of the node.
const CLIENT: &str = POD_INTERFACE;
/// The server's devices on the path to the client: a masqueraded flow may take the primary ENI.
const SERVER: [&str; 2] = ["eni0", "eni1"];

impl Lane<'_> {
    /// Makes TCP leave segmentation to the devices at both ends, or do it itself.
    ///
    /// # Errors
    /// When ethtool refuses.
    pub fn set_offloads(&self, on: bool) -> Result<()> {
        set(self.client.netns, CLIENT, on)?;
        SERVER
            .iter()
            .try_for_each(|device| set(self.server.netns, device, on))
    }
}

/// Generic receive offload is off on a veth by default, and stays so.
fn set(netns: &Netns, device: &str, on: bool) -> Result<()> {
    let word = if on { "on" } else { "off" };
    let line = format!("ethtool -K {device} tso {word} gso {word}");
    netns.run(&line).map(drop)
}
