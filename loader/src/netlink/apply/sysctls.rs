//! Sysctls.

use anyhow::Context;

use super::super::socket::Socket;
use super::super::{observe, sysctl};
use crate::kernel::{Sysctl, SysctlScope};

/// Writes a sysctl. A device that is gone has none, which is success.
pub(in crate::netlink) async fn set(
    socket: &mut Socket,
    key: Sysctl,
    value: &str,
) -> anyhow::Result<()> {
    let device = match key.scope {
        SysctlScope::Device(ifindex) => {
            let link = observe::by_index(socket, ifindex)
                .await
                .with_context(|| format!("find device {ifindex}"))?;
            match link {
                Some(link) => Some(link.kernel_name().to_owned()),
                None => return Ok(()),
            }
        }
        SysctlScope::All => Some("all".to_owned()),
        SysctlScope::Family => None,
    };
    sysctl::write(
        &sysctl::path(key.family, device.as_deref(), key.name),
        value,
    )
}
