//! `towpath-ipam`: ADD and CHECK of addresses for another plugin's interface.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Call;
use super::interface::address_differences;
use crate::agent::wire::Request;
use crate::failure::{Code, Failure};
use crate::log;
use crate::request::arguments::Arguments;
use crate::request::environment::{Target, Variables};
use crate::result;

/// Leases addresses and claims them: the calling plugin makes the interface itself.
pub(super) fn add<V: Variables>(
    call: &Call<'_, V>,
    target: &Target,
    arguments: &Arguments,
) -> Result<Value, Failure> {
    let owner = &target.owner;
    let request = Request {
        owner,
        netns: None,
        wanted: &call.wanted(arguments)?,
        network: Some(&call.config.name),
        pod: super::known(&arguments.pod),
    };
    let failed = |error: crate::agent::CallError| error.into_failure(&format!("ADD {owner}"));
    let leased = call.agent.lease(&request).map_err(failed)?;
    call.agent.claim(owner).map_err(|error| {
        // It expires by itself where this fails too.
        if let Err(error) = call.agent.release(owner) {
            log::warn(&format!("after a failed claim: {error}"));
        }
        failed(error)
    })?;
    Ok(result::of_lease(call.config, &leased.addresses))
}

/// Compares the addresses of the runtime's previous result with the leases.
pub(super) fn check<V: Variables>(call: &Call<'_, V>, target: &Target) -> Result<(), Failure> {
    let owner = &target.owner;
    let expected = super::previous(call.config)?
        .addresses()
        .into_iter()
        .collect();
    let leases = call
        .agent
        .leases()
        .map_err(|error| error.into_failure(&format!("CHECK {owner}")))?;
    let of_owner = leases.leases.iter().filter(|lease| lease.owner == *owner);
    let has: BTreeSet<_> = of_owner.map(|lease| lease.address).collect();
    if has.is_empty() {
        let message = format!("CHECK {owner}: no address is leased to it");
        return Err(Failure::new(Code::UnknownContainer, message));
    }
    super::verdict(&address_differences(&expected, &has))
}
