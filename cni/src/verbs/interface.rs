//! `towpath-cni`: ADD and CHECK of a container's interface.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use super::Call;
use crate::agent::CallError;
use crate::agent::wire::{Attachment, Request, Wanted};
use crate::delegate::{Delegate, is_same_file};
use crate::failure::{Code, Failure};
use crate::fault_points::{self, Point};
use crate::log;
use crate::request::arguments::Arguments;
use crate::request::config::PreviousResult;
use crate::request::environment::{Command, Target, Variables};
use crate::result;

/// Attaches the container. The same again gets the same answer.
pub(super) fn add<V: Variables>(
    call: &Call<'_, V>,
    target: &Target,
    netns: &Path,
    arguments: &Arguments,
) -> Result<Value, Failure> {
    let config = call.config;
    let wanted = call.wanted(arguments)?;
    let delegate = call.delegate()?;
    if delegate.is_some() && !(wanted.families.is_empty() && wanted.pools.is_empty()) {
        let message = "pools and families cannot be given with another plugin's addresses";
        return Err(Failure::new(Code::InvalidConfig, message)
            .with_details("take them, or TOWPATH_POOL, or ipam.type away"));
    }
    // Until the agent has the addresses that the delegated plugin gave.
    let turn = delegate.as_ref().map(|_| call.take_turn(&target.owner));
    let _turn = turn.transpose()?;
    let delegated = match &delegate {
        Some(delegate) => delegated_addresses(call, target, delegate)?,
        None => None,
    };
    let wanted = match (&delegate, &delegated) {
        (None, _) => wanted,
        // Without a result the request is for the owner's present addresses.
        (Some(_), None) => Wanted::default(),
        (Some(_), Some(result)) => Wanted {
            addresses: result.addresses(),
            ..Wanted::default()
        },
    };
    let request = Request {
        owner: &target.owner,
        netns: Some(netns),
        wanted: &wanted,
        network: Some(&config.name),
        pod: super::known(&arguments.pod),
    };
    let attachment = call.agent.attach(&request).map_err(|error| {
        if let (Some(delegate), Some(_)) = (&delegate, &delegated) {
            undo(call, target, delegate);
        }
        error.into_failure(&format!("ADD {}", target.owner))
    })?;
    let dns = dns(&config.requested.dns, delegated.as_ref());
    let interface = result::Interface {
        name: &target.owner.interface,
        netns,
        attachment: &attachment,
    };
    Ok(result::of_attachment(config, interface, dns))
}

/// The network's DNS settings, or where it has none those of the delegated plugin.
fn dns<'a>(of_network: &'a Value, delegated: Option<&'a PreviousResult>) -> &'a Value {
    delegated
        .and_then(|result| result.get("dns"))
        .filter(|_| of_network.as_object().is_none_or(serde_json::Map::is_empty))
        .unwrap_or(of_network)
}

/// Gets addresses from the delegated plugin; `None` when the owner has an endpoint: plugins such as
/// host-local refuse a second ADD.
fn delegated_addresses<V: Variables>(
    call: &Call<'_, V>,
    target: &Target,
    delegate: &Delegate,
) -> Result<Option<PreviousResult>, Failure> {
    match call.agent.inspect(&target.owner) {
        Ok(_endpoint) => return Ok(None),
        // Nothing has to be undone yet.
        Err(error) if error.is_absence() => {
            return Err(error.into_failure(&format!("ADD {}", target.owner)));
        }
        Err(_none) => {}
    }
    let result = delegate.add(&call.config.raw);
    let result = result.inspect_err(|_failed| undo(call, target, delegate))?;
    fault_points::reach(Point::Delegated);
    Ok(Some(result))
}

/// Makes the delegated plugin delete the addresses that a failed ADD may have left. It does not if
/// the owner has an endpoint, or may have one: the address would be given to another container. The
/// DEL that follows a failed ADD removes the rest.
fn undo<V: Variables>(call: &Call<'_, V>, target: &Target, delegate: &Delegate) {
    match call.agent.inspect(&target.owner) {
        Err(CallError::Refused(refusal)) if refusal.code == "unknown-endpoint" => {
            delegate.undo(&call.config.raw);
        }
        Ok(_endpoint) => log::warn("after a failed ADD: the owner has an endpoint, which stays"),
        Err(error) => log::warn(&format!(
            "after a failed ADD: the IPAM plugin's addresses stay until DEL: {error}"
        )),
    }
}

/// Compares the runtime's previous result with the agent's record and the kernel. Later plugins of
/// the chain may have changed MACs, MTUs and routes; interface and addresses stay.
pub(super) fn check<V: Variables>(
    call: &Call<'_, V>,
    target: &Target,
    netns: &Path,
) -> Result<(), Failure> {
    let previous = super::previous(call.config)?;
    let inspection = call
        .agent
        .inspect(&target.owner)
        .map_err(|error| error.into_failure(&format!("CHECK {}", target.owner)))?;
    let mut problems = differences(target, netns, previous, &inspection.attachment);
    problems.extend(inspection.problems);
    super::verdict(&problems)?;
    match call.delegate()? {
        Some(delegate) => delegate.call(Command::Check, &call.config.raw),
        None => Ok(()),
    }
}

fn differences(
    target: &Target,
    netns: &Path,
    previous: &PreviousResult,
    attachment: &Attachment,
) -> Vec<String> {
    let mut problems = Vec::new();
    if !is_same_file(netns, &attachment.netns) {
        problems.push(format!(
            "CNI_NETNS is {}, but the endpoint is in {}",
            netns.display(),
            attachment.netns.display()
        ));
    }
    let name = &target.owner.interface;
    let Some(position) = previous.interface(name, netns) else {
        problems.push(format!("prevResult has no interface {name} in a sandbox"));
        return problems;
    };
    let host_device = attachment.host_device.as_str();
    let is_host =
        |interface: &Value| interface.get("name").and_then(Value::as_str) == Some(host_device);
    if !previous.list("interfaces").iter().any(is_host) {
        problems.push(format!("prevResult has no interface {host_device}"));
    }
    let has: BTreeSet<_> = attachment.addresses.iter().map(|of| of.address).collect();
    let expected = previous.addresses_of(position).into_iter().collect();
    problems.extend(address_differences(&expected, &has));
    problems
}

/// Describes the difference between the addresses that a container was given and those that it has.
pub(super) fn address_differences(
    expected: &BTreeSet<IpAddr>,
    has: &BTreeSet<IpAddr>,
) -> Vec<String> {
    let lost = expected
        .difference(has)
        .map(|address| format!("{address} of prevResult is not the container's"));
    let foreign = has
        .difference(expected)
        .map(|address| format!("{address} is the container's and not in prevResult"));
    lost.chain(foreign).collect()
}
