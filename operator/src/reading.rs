//! Whole reads of EC2 for commands, which have no budgets of their own.

use std::collections::BTreeSet;
use std::time::Duration;

use cloud::call::query::{Items, Query, What};
use cloud::{Class, Failure, VpcId};
use ec2::Ec2;
use tokio::time::sleep;

/// Waits after throttled calls and calls without an answer. A command gives up after the last one.
const WAITS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// Reads all pages. No VPCs stand for all.
///
/// # Errors
/// When EC2 refuses a page, or still throttles it after half a minute.
pub async fn read_all(ec2: &dyn Ec2, what: What, vpcs: BTreeSet<VpcId>) -> Result<Items, Failure> {
    let mut all = what.items();
    let mut query = Query {
        what,
        vpcs,
        page: None,
    };
    loop {
        let page = patiently(async || ec2.read(&query).await).await?;
        all.extend(page.items);
        match page.next {
            Some(next) => query.page = Some(next),
            None => return Ok(all),
        }
    }
}

/// Makes a call that can be repeated, until EC2 neither throttles it nor leaves it unanswered.
///
/// # Errors
/// The last failure.
pub async fn patiently<T>(mut call: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for wait in WAITS {
        match call().await {
            Err(failure) if matches!(failure.class, Class::Throttled | Class::Unanswered) => {
                sleep(wait).await;
            }
            answer => return answer,
        }
    }
    call().await
}
