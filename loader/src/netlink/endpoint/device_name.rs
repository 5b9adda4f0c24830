//! The name of a pod's device: its endpoint id's, or one by which policy engines find the pod.

use anyhow::Context as _;

use crate::intent::Endpoint;
use crate::kernel::{Link, LinkKind};
use crate::netlink::socket::Socket;
use crate::netlink::{apply, observe};
use crate::observation::ownership::endpoint_device;

/// A name that a new device of an endpoint can have. One that the device of another endpoint has is
/// taken from that: the pod's earlier sandbox, which is dead. One that is not ours to take is left.
pub(super) async fn claim(socket: &mut Socket, endpoint: &Endpoint) -> anyhow::Result<String> {
    let id = endpoint.id();
    let Some(name) = &endpoint.about.device else {
        return Ok(id.device());
    };
    let found = observe::by_name(socket, name);
    let found = found
        .await
        .with_context(|| format!("look for a device {name}"))?;
    match found {
        None => Ok(name.clone()),
        Some(link) if is_half_made(&link, endpoint) => {
            apply::links::delete(socket, link.ifindex).await?;
            Ok(name.clone())
        }
        Some(link) if link.alias.is_some() && endpoint_device(&link).is_some() => {
            apply::links::rename(socket, link.ifindex, &link.name).await?;
            if link.up {
                apply::links::set_up(socket, link.ifindex).await?;
            }
            Ok(name.clone())
        }
        Some(_) => {
            let own = id.device();
            tracing::warn!("a device {name} is there and is not ours: {own} keeps its own name");
            Ok(own)
        }
    }
}

/// A device of the endpoint that got no second name before its agent died.
fn is_half_made(link: &Link, endpoint: &Endpoint) -> bool {
    link.kind == LinkKind::Veth && link.mac == Some(endpoint.id().host_mac())
}
