//! Listings.

use crate::call::{Describe, Filter, What};
use crate::error::{Failure, Result};
use crate::server::wire::parameters::Parameters;

pub(super) fn describe(parameters: &mut Parameters, what: What) -> Result<Describe> {
    Ok(Describe {
        what,
        ids: ids(parameters, what)?,
        filters: parameters.each("Filter", filter)?,
        max: parameters.parsed("MaxResults", "a number of at least 5")?,
        next: parameters.text("NextToken"),
    })
}

/// The ids that a listing names. An Elastic IP address has two: its allocation's and itself.
fn ids(parameters: &mut Parameters, what: What) -> Result<Vec<String>> {
    let name = match what {
        What::Addresses => {
            let mut ids = parameters.texts("AllocationId")?;
            ids.extend(parameters.texts("PublicIp")?);
            return Ok(ids);
        }
        What::GroupsForVpc => return Ok(vec![parameters.required("VpcId")?]),
        What::Tags => return Ok(Vec::new()),
        What::Instances => "InstanceId",
        What::InstanceTypes => "InstanceType",
        What::Interfaces => "NetworkInterfaceId",
        What::RouteTables => "RouteTableId",
        What::Groups => "GroupId",
        What::Subnets => "SubnetId",
        What::Vpcs => "VpcId",
    };
    parameters.texts(name)
}

fn filter(element: &mut Parameters) -> Result<Filter> {
    let name = element.text("Name");
    let name = name.ok_or_else(|| Failure::value("The filter 'null' is invalid"))?;
    let values = element.texts("Value")?;
    if values.is_empty() {
        return Err(Failure::value(format!("The filter '{name}' has no value")));
    }
    Ok(Filter { name, values })
}
