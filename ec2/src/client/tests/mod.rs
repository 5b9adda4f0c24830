//! The client against a server that plays recorded answers, and against the fake of EC2.

mod environment;
mod fake;
mod listings;
mod played;
mod refusals;
mod steps;
mod tls;
mod values;

use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_ec2::Config;
use aws_sdk_ec2::config::Credentials;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_smithy_http_client::Builder;

use super::{Client, Settings};

/// A client of a server on this machine.
fn client(endpoint: &str, limit: Duration) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("AKIDTEST", "secret", None, None, "test"))
        .endpoint_url(endpoint)
        .http_client(Builder::new().build_http())
        .retry_config(RetryConfig::disabled())
        .build();
    let settings = Settings {
        limit,
        ..Settings::default()
    };
    Client::new(config, &settings)
}
