//! Pages of reads as calls.

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::Reservation;
use cloud::Failure;
use cloud::call::query::{Items, Page, What};

use super::Sent;
use super::cursor::Ask;
use crate::shape::{self, FieldError};

/// Sends a listing, whose parameters have the same names in all of them.
macro_rules! listed {
    ($sdk:expr, $call:expr, $ask:expr, $listing:ident) => {
        $sdk.$listing()
            .set_filters(Some($ask.filters.clone()).filter(|it| !it.is_empty()))
            .max_results($ask.size)
            .set_next_token($ask.token.clone())
            .dry_run($ask.trial)
            .send()
            .await
            .map_err(|error| $call.failed(&error))?
    };
}

/// Reads a page.
pub(super) async fn page(sdk: &Client, call: Sent, what: &What, ask: Ask) -> Result<Page, Failure> {
    let (items, token) = match what {
        What::Enis(_) => {
            let answer = listed!(sdk, call, ask, describe_network_interfaces);
            let enis = all(call, answer.network_interfaces(), shape::eni)?;
            (Items::Enis(enis), answer.next_token)
        }
        What::Instances(_) => instances(sdk, call, &ask).await?,
        What::Types(_) => {
            let answer = listed!(sdk, call, ask, describe_instance_types);
            let types = all(call, answer.instance_types(), shape::type_info)?;
            (Items::Types(types), answer.next_token)
        }
        What::Subnets | What::RouteTables | What::Groups | What::Vpcs => {
            network(sdk, call, what, &ask).await?
        }
        What::Addresses => (addresses(sdk, call, &ask).await?, None),
    };
    let next = ask.next(token.as_deref());
    if next.is_some() && next.as_deref() == current(&ask).as_deref() {
        return Err(call.unanswered("the answer names its own page as the next one"));
    }
    Ok(Page { items, next })
}

/// The token of the page that is read; none for a page that has none of EC2.
fn current(ask: &Ask) -> Option<String> {
    ask.next(Some(ask.token.as_deref()?))
}

type Part = (Items, Option<String>);

async fn instances(sdk: &Client, call: Sent, ask: &Ask) -> Result<Part, Failure> {
    let answer = listed!(sdk, call, ask, describe_instances);
    let reservations = answer.reservations().iter();
    let instances = reservations.flat_map(Reservation::instances);
    let instances = all(call, instances, shape::instance)?;
    Ok((Items::Instances(instances), answer.next_token))
}

/// EC2 has all addresses in one answer, and takes neither a size nor a token.
async fn addresses(sdk: &Client, call: Sent, ask: &Ask) -> Result<Items, Failure> {
    let request = sdk.describe_addresses().dry_run(ask.trial);
    let answer = request.send().await.map_err(|error| call.failed(&error))?;
    // An address of the account that is in no VPC has no allocation.
    let in_vpcs = answer.addresses().iter();
    let in_vpcs = in_vpcs.filter(|it| it.allocation_id().is_some());
    Ok(Items::Addresses(all(call, in_vpcs, shape::elastic)?))
}

async fn network(sdk: &Client, call: Sent, what: &What, ask: &Ask) -> Result<Part, Failure> {
    Ok(match what {
        What::RouteTables => {
            let answer = listed!(sdk, call, ask, describe_route_tables);
            let tables = all(call, answer.route_tables(), shape::route_table)?;
            (Items::RouteTables(tables), answer.next_token)
        }
        What::Groups => {
            let answer = listed!(sdk, call, ask, describe_security_groups);
            let groups = all(call, answer.security_groups(), shape::group)?;
            (Items::Groups(groups), answer.next_token)
        }
        What::Vpcs => {
            let answer = listed!(sdk, call, ask, describe_vpcs);
            let vpcs = all(call, answer.vpcs(), shape::vpc)?;
            (Items::Vpcs(vpcs), answer.next_token)
        }
        _ => {
            let answer = listed!(sdk, call, ask, describe_subnets);
            let subnets = all(call, answer.subnets(), shape::subnet)?;
            (Items::Subnets(subnets), answer.next_token)
        }
    })
}

/// All objects of a page, or the first fault of one.
fn all<'a, S: 'a, T>(
    call: Sent,
    shown: impl IntoIterator<Item = &'a S>,
    shape: impl Fn(&'a S) -> Result<T, FieldError>,
) -> Result<Vec<T>, Failure> {
    let items: Result<Vec<T>, FieldError> = shown.into_iter().map(shape).collect();
    items.map_err(|error| call.unreadable(&error))
}
