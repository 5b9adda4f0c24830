//! The proxy of the environment.
//!
//! Only HTTPS goes through it. Credentials and the region come by HTTP of addresses on the machine
//! itself, which no proxy reaches.

use aws_smithy_http_client::proxy::ProxyConfig;

use super::ConnectError;

/// Variables that name the proxy; the first that is set counts.
const VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
/// Variables that name hosts without proxy.
const EXCEPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The proxy that the environment names.
pub(super) fn proxy(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ProxyConfig, ConnectError> {
    let set = |name: &str| variable(name).filter(|it| !it.trim().is_empty());
    let named = VARIABLES.into_iter().find_map(|it| Some((it, set(it)?)));
    let Some((variable, url)) = named else {
        return Ok(ProxyConfig::disabled());
    };
    let url = url.trim();
    let url = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let proxy = ProxyConfig::https(url).map_err(|error| ConnectError::Proxy {
        variable,
        fault: error.to_string(),
    })?;
    Ok(match EXCEPT.into_iter().find_map(set) {
        Some(except) => proxy.no_proxy(except),
        None => proxy,
    })
}
