//! The client's configuration, from settings and environment.

use std::path::PathBuf;
use std::time::Duration;

use aws_config::{AppName, BehaviorVersion, Region};
use aws_sdk_ec2::Config;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::config::timeout::TimeoutConfig;
use aws_sdk_ec2::config::{RuntimeComponents, SharedHttpClient};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::HttpConnectorSettings;

use super::{ConnectError, Settings, trust, tunnel};

/// The client's name in the logs of AWS.
const NAME: &str = "towpath-operator";
/// Idle connections are closed before EC2 closes them, which would lose a call.
const IDLE: Duration = Duration::from_secs(20);

/// The configuration of EC2's client.
pub(super) async fn config(settings: &Settings) -> Result<Config, ConnectError> {
    if let Some(url) = &settings.endpoint {
        check_endpoint(url)?;
    }
    let bundle = variable("AWS_CA_BUNDLE").filter(|it| !it.is_empty());
    let trust = trust::store(bundle.map(PathBuf::from).as_deref())?;
    let http = http(tunnel::proxy(variable)?, trust)?;
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http)
        // The credentials' own calls keep the SDK's repetitions; EC2's have none.
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(settings.limit)
                .build(),
        );
    if let Ok(name) = AppName::new(NAME) {
        loader = loader.app_name(name);
    }
    if let Some(region) = &settings.region {
        loader = loader.region(Region::new(region.clone()));
    }
    let shared = loader.load().await;
    if shared.region().is_none_or(|it| it.as_ref().is_empty()) {
        return Err(ConnectError::NoRegion);
    }
    let mut config = Config::from(&shared).to_builder();
    if let Some(url) = &settings.endpoint {
        config = config.endpoint_url(url);
    }
    Ok(config.retry_config(RetryConfig::disabled()).build())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn check_endpoint(url: &str) -> Result<(), ConnectError> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(()),
        _ => Err(ConnectError::Endpoint(url.to_owned())),
    }
}

/// The client of HTTP, which credentials' calls share.
fn http(proxy: ProxyConfig, trust: TrustStore) -> Result<SharedHttpClient, ConnectError> {
    let tls = TlsContext::builder().with_trust_store(trust).build();
    let tls = tls.map_err(|error| ConnectError::Tls(error.to_string()))?;
    let connector = move |settings: Option<&HttpConnectorSettings>,
                          components: Option<&RuntimeComponents>| {
        let mut builder = Connector::builder()
            .proxy_config(proxy.clone())
            .pool_idle_timeout(IDLE)
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .tls_context(tls.clone());
        builder.set_connector_settings(settings.cloned());
        builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        builder.build()
    };
    Ok(Builder::new().build_with_connector_fn(connector))
}
