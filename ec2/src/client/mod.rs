//! [`Ec2`] by the SDK of AWS.

mod connect;
mod cursor;
mod failure;
mod query;
mod send;
mod settings;
#[cfg(test)]
mod tests;
mod trust;
mod tunnel;
mod whole;

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use aws_sdk_ec2::Config;
use aws_sdk_ec2::config::IdentityCache;
use cloud::call::query::{Page, Query, What};
use cloud::node::{Outcome, Step};
use cloud::{Action, Class, Failure};

pub use self::settings::{ConnectError, Settings};
use crate::{Call, Ec2, Meter, Verdict};

/// Credentials are loaded within so long, which leaves time to report that they were not.
const CREDENTIALS_WITHIN: Duration = Duration::from_secs(4);

/// EC2 of one region, by the SDK of AWS. Each call is sent once.
#[derive(Debug)]
pub struct Client {
    sdk: RwLock<aws_sdk_ec2::Client>,
    config: Config,
    page: i32,
    limit: Duration,
    meter: Meter,
}

impl Client {
    /// A client with the credentials, the region and the proxy of the environment.
    ///
    /// # Errors
    /// When the region is not known, or the proxy or the file with certificates cannot be used.
    pub async fn connect(settings: &Settings) -> Result<Self, ConnectError> {
        let config = connect::config(settings).await?;
        Ok(Self::new(config, settings))
    }

    fn new(config: Config, settings: &Settings) -> Self {
        Self {
            sdk: RwLock::new(aws_sdk_ec2::Client::from_conf(fresh(&config))),
            config,
            page: i32::from(settings.page),
            limit: settings.limit,
            meter: Meter::default(),
        }
    }

    fn sdk(&self) -> aws_sdk_ec2::Client {
        self.sdk
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Drops the credentials that EC2 did not accept: the next call loads new ones.
    fn forget_credentials(&self) {
        let sdk = aws_sdk_ec2::Client::from_conf(fresh(&self.config));
        *self.sdk.write().unwrap_or_else(PoisonError::into_inner) = sdk;
    }

    /// Makes a call within the time limit, and counts it.
    async fn timed<T>(
        &self,
        call: Sent,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        let result = tokio::time::timeout(self.limit, answer).await;
        let result = result.unwrap_or_else(|_elapsed| {
            let reason = format!("no reply within {:?}", self.limit);
            Err(call.unanswered(&reason))
        });
        self.meter
            .count(call.0.name(), result.as_ref().err(), begun.elapsed());
        if let Err(failure) = &result
            && failure.class == Class::Credentials
        {
            self.forget_credentials();
        }
        result
    }

    async fn sent(&self, step: &Step, trial: bool) -> Result<Outcome, Failure> {
        let call = Sent(step.action());
        let sdk = self.sdk();
        self.timed(call, send::step(&sdk, call, step, trial)).await
    }

    async fn page(&self, query: &Query, trial: bool) -> Result<Page, Failure> {
        let call = Sent(query.what.action());
        let sdk = self.sdk();
        let ask = match cursor::ask(query, self.page, trial) {
            Ok(Some(ask)) => ask,
            Ok(None) => return Ok(cursor::nothing(&query.what)),
            Err(error) => return Err(call.invalid(&error.to_string())),
        };
        self.timed(call, query::page(&sdk, call, &query.what, ask))
            .await
    }
}

impl Ec2 for Client {
    fn step<'a>(&'a self, step: &'a Step) -> Call<'a, Outcome> {
        Box::pin(async move {
            let sent = self.sent(step, false).await;
            sent.unwrap_or_else(Outcome::Failed)
        })
    }

    fn read<'a>(&'a self, query: &'a Query) -> Call<'a, Result<Page, Failure>> {
        Box::pin(self.page(query, false))
    }

    fn try_step<'a>(&'a self, step: &'a Step) -> Call<'a, Verdict> {
        Box::pin(async move {
            // The model of EC2 has no trial of these two: such a call would be carried out.
            if let Action::Assign | Action::AssignIpv6 | Action::Unassign = step.action() {
                return Verdict::Untried;
            }
            verdict(self.sent(step, true).await)
        })
    }

    fn try_read<'a>(&'a self, what: &'a What) -> Call<'a, Verdict> {
        Box::pin(async move {
            let query = Query {
                what: what.clone(),
                vpcs: BTreeSet::new(),
                page: None,
            };
            verdict(self.page(&query, true).await)
        })
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// A call that is sent, for its failures.
#[derive(Clone, Copy, Debug)]
struct Sent(Action);

/// The configuration with a cache that holds no credentials yet.
fn fresh(config: &Config) -> Config {
    let cache = IdentityCache::lazy().load_timeout(CREDENTIALS_WITHIN);
    config
        .to_builder()
        .identity_cache(cache.build())
        .interceptor(whole::Whole)
        .build()
}

/// EC2 answers a trial with an error in any case.
fn verdict<T>(trial: Result<T, Failure>) -> Verdict {
    match trial {
        Ok(_) => Verdict::Allowed,
        Err(failure) if failure.code == "DryRunOperation" => Verdict::Allowed,
        Err(failure) => Verdict::Refused(failure),
    }
}
