//! Requests of the EC2 Query protocol as calls.

mod addresses;
mod change;
mod listing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::model::{MODEL, missing};
use super::parameters::Parameters;
use crate::call::{Call, Request, What};
use crate::error::{Failure, Result};
use crate::family::Family;

/// The call that the pairs of a form or a query string stand for.
///
/// # Errors
/// As EC2 answers: an action, a parameter or a value that it does not have, or one that is missing.
pub(super) fn request(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Request> {
    let mut values = BTreeMap::new();
    for (name, value) in pairs {
        if values.contains_key(&name) {
            return Err(Failure::new(
                "MalformedQueryString",
                format!("The parameter {name} is there twice"),
            ));
        }
        values.insert(name, value);
    }
    let action = values.remove("Action").ok_or_else(|| {
        Failure::new(
            "MissingAction",
            "The request is missing an action or a required parameter.",
        )
    })?;
    let version = values.remove("Version").ok_or_else(|| missing("Version"))?;
    if version != MODEL.version {
        return Err(Failure::new(
            "NoSuchVersion",
            format!("The requested version ({version}) of service AmazonEC2 does not exist"),
        ));
    }
    let model = MODEL.actions.get(&action).ok_or_else(|| invalid(&action))?;
    model.check(&values)?;
    let mut parameters = Parameters::new(values);
    let dry_run = parameters.flag("DryRun")?;
    let call = call(&action, &mut parameters)?;
    parameters.finish()?;
    Ok(Request { call, dry_run })
}

fn invalid(action: &str) -> Failure {
    Failure::new(
        "InvalidAction",
        format!("The action {action} is not valid for this web service."),
    )
}

fn call(action: &str, parameters: &mut Parameters) -> Result<Call> {
    Ok(match action {
        "CreateNetworkInterface" => Call::Create(Box::new(change::create(parameters)?)),
        "AttachNetworkInterface" => Call::Attach(change::attach(parameters)?),
        "DetachNetworkInterface" => Call::Detach(parameters.required("AttachmentId")?),
        "DeleteNetworkInterface" => Call::Delete(parameters.required("NetworkInterfaceId")?),
        "ModifyNetworkInterfaceAttribute" => Call::Modify(change::modify(parameters)?),
        "AssignPrivateIpAddresses" => Call::Assign(addresses::assign(parameters, Family::V4)?),
        "AssignIpv6Addresses" => Call::Assign(addresses::assign(parameters, Family::V6)?),
        "UnassignPrivateIpAddresses" => Call::Unassign(addresses::assign(parameters, Family::V4)?),
        "UnassignIpv6Addresses" => Call::Unassign(addresses::assign(parameters, Family::V6)?),
        "CreateTags" => Call::Tag {
            resources: parameters.texts("ResourceId")?,
            tags: change::tags(parameters)?,
        },
        "AssociateAddress" => Call::Associate(change::associate(parameters)?),
        "DisassociateAddress" => Call::Disassociate(parameters.required("AssociationId")?),
        _ => {
            let mut all = What::ALL.into_iter();
            let what = all.find(|what| what.action() == action);
            let what = what.ok_or_else(|| invalid(action))?;
            Call::Describe(listing::describe(parameters, what)?)
        }
    })
}
