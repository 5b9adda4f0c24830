//! Settings of the client.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of the client. Credentials, FIPS, dual stack, proxy and certificates are those of the
/// environment, as with every client of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The region; else that of the environment, or of the instance's metadata.
    pub region: Option<String>,
    /// The endpoint's URL; else the region's.
    pub endpoint: Option<String>,
    /// Objects of a page, at most.
    pub page: u16,
    /// The time that a call has, credentials included.
    pub limit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: None,
            endpoint: None,
            page: 500,
            limit: Duration::from_secs(5),
        }
    }
}

/// The client cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing names the region.
    #[error(
        "region: not known, expected AWS_REGION, AWS_DEFAULT_REGION, the setting, or an answer of \
         the instance's metadata"
    )]
    NoRegion,
    /// The endpoint is not a URL.
    #[error("endpoint: {0:?}, expected a URL such as https://ec2.eu-central-1.amazonaws.com")]
    Endpoint(String),
    /// The proxy cannot be used.
    #[error("proxy: {variable}: {fault}, expected a URL such as http://proxy.example.com:3128")]
    Proxy {
        /// The variable of the environment.
        variable: &'static str,
        /// The fault.
        fault: String,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// The file with certificates cannot be used.
    #[error("AWS_CA_BUNDLE: {path}: {fault}, expected a file of certificates in PEM", path = .path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// The fault.
        fault: String,
    },
}
