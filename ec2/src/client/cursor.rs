//! Pages of a query. EC2 takes a limited number of names a call, so a query of many names is read
//! in parts, each of one page or more.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::Filter;
use cloud::call::query::{Page, Query, What};
use cloud::inventory::Scope;

/// The most values that a filter may have.
const VALUES: usize = 200;
/// The most instance types and route tables of a page.
const SMALL_PAGE: i32 = 100;
/// The fewest objects of a page that EC2 accepts.
const LEAST: i32 = 5;
/// The most objects of a page that EC2 accepts.
const MOST: i32 = 1_000;

/// The parameters of a call. Objects are named by filters: EC2 refuses ids together with a size of
/// the page, and refuses all ids for one that it does not know.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) filters: Vec<Filter>,
    pub(super) size: i32,
    pub(super) token: Option<String>,
    pub(super) trial: bool,
    /// The part of the names.
    part: usize,
    /// Later parts follow.
    has_more: bool,
}

/// A page's token is not one that an earlier page ended with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("page: {0:?}, expected the token of the page before")]
pub(super) struct TokenError(String);

/// The call for a page; none where a query names nothing.
pub(super) fn ask(query: &Query, size: i32, trial: bool) -> Result<Option<Ask>, TokenError> {
    let (part, token) = match &query.page {
        Some(page) => split(page)?,
        None => (0, None),
    };
    let mut filters = Vec::new();
    let mut has_more = false;
    if let Some((name, values)) = names(&query.what) {
        let mut parts = values.chunks(VALUES).skip(part);
        match parts.next() {
            Some(values) => filters.push(filter(name, values.to_vec())),
            None if trial => {}
            None => return Ok(None),
        }
        has_more = parts.next().is_some();
    }
    let by_state = match query.what {
        What::Enis(Scope::Loose) => Some(("status", "available")),
        What::Enis(Scope::Primaries) => Some(("attachment.device-index", "0")),
        _ => None,
    };
    filters.extend(by_state.map(|(name, value)| filter(name, vec![value.to_owned()])));
    if !query.vpcs.is_empty() && has_vpc(&query.what) {
        filters.push(filter("vpc-id", texts(&query.vpcs)));
    }
    Ok(Some(Ask {
        filters,
        size: size.clamp(least(&query.what), most(&query.what)),
        token,
        trial,
        part,
        has_more,
    }))
}

/// The page of a query that names nothing.
pub(super) fn nothing(what: &What) -> Page {
    Page {
        items: what.items(),
        next: None,
    }
}

impl Ask {
    /// The token of the next page: the part, and EC2's own token within it.
    pub(super) fn next(&self, token: Option<&str>) -> Option<String> {
        match token.filter(|it| !it.is_empty()) {
            Some(token) => Some(format!("{}:{token}", self.part)),
            None => self.has_more.then(|| format!("{}:", self.part + 1)),
        }
    }
}

fn split(page: &str) -> Result<(usize, Option<String>), TokenError> {
    let parts = page.split_once(':').and_then(|(part, token)| {
        let token = (!token.is_empty()).then(|| token.to_owned());
        Some((part.parse().ok()?, token))
    });
    parts.ok_or_else(|| TokenError(page.to_owned()))
}

/// The filter by which a query names its objects.
fn names(what: &What) -> Option<(&'static str, Vec<String>)> {
    match what {
        What::Enis(Scope::Instances(ids)) => Some(("attachment.instance-id", texts(ids))),
        What::Enis(Scope::Ids(ids)) => Some(("network-interface-id", texts(ids))),
        What::Instances(ids) => Some(("instance-id", texts(ids))),
        What::Types(names) => Some(("instance-type", texts(names))),
        _ => None,
    }
}

/// Reports if a query is limited to VPCs. Ids are enough, and types are of no VPC.
fn has_vpc(what: &What) -> bool {
    match what {
        What::Enis(scope) => !matches!(scope, Scope::Instances(_) | Scope::Ids(_)),
        What::Subnets | What::RouteTables | What::Groups | What::Vpcs => true,
        What::Instances(_) | What::Types(_) | What::Addresses => false,
    }
}

fn least(what: &What) -> i32 {
    match what {
        // They have few addresses, and this read comes often.
        What::Enis(Scope::Primaries) => MOST,
        _ => LEAST,
    }
}

fn most(what: &What) -> i32 {
    match what {
        What::Types(_) | What::RouteTables => SMALL_PAGE,
        _ => MOST,
    }
}

fn texts<T: ToString>(values: &BTreeSet<T>) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn filter(name: &str, values: Vec<String>) -> Filter {
    Filter::builder()
        .name(name)
        .set_values(Some(values))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_size_that_ec2_accepts() {
        let size = |what: &What, size| {
            let query = Query {
                what: what.clone(),
                vpcs: BTreeSet::new(),
                page: None,
            };
            ask(&query, size, false).unwrap().unwrap().size
        };
        let types = What::Types(["m5.large".to_owned()].into());
        assert_eq!(size(&What::Enis(Scope::Primaries), 500), 1_000);
        for (wanted, of_subnets, of_types) in [(0, 5, 5), (500, 500, 100), (65_535, 1_000, 100)] {
            assert_eq!(size(&What::Subnets, wanted), of_subnets);
            assert_eq!(size(&types, wanted), of_types);
            assert_eq!(size(&What::RouteTables, wanted), of_types);
        }
    }

    #[test]
    fn primary_enis_are_those_of_index_0_in_the_vpcs_of_the_cluster() {
        let query = Query {
            what: What::Enis(Scope::Primaries),
            vpcs: ["vpc-1".into()].into(),
            page: None,
        };
        let filters = ask(&query, 500, false).unwrap().unwrap().filters;
        let shown = filters.iter().map(|it| (it.name().unwrap(), it.values()));
        let expected = [
            ("attachment.device-index", ["0".to_owned()]),
            ("vpc-id", ["vpc-1".to_owned()]),
        ];
        assert!(shown.eq(expected.iter().map(|(name, values)| (*name, &values[..]))));
    }
}
