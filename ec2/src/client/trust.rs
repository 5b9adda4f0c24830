//! The certificates that EC2's endpoint is trusted by.

use std::path::Path;

use aws_smithy_http_client::tls::TrustStore;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::ConnectError;

/// The system's certificates, or those of a file in their place.
pub(super) fn store(bundle: Option<&Path>) -> Result<TrustStore, ConnectError> {
    let Some(path) = bundle else {
        // An image may have none. Then TLS fails by name, where the client would panic.
        let has_any = !rustls_native_certs::load_native_certs().certs.is_empty();
        return Ok(TrustStore::empty().with_native_roots(has_any));
    };
    let fault = |fault: String| ConnectError::Bundle {
        path: path.to_owned(),
        fault,
    };
    let text = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    check(&text).map_err(fault)?;
    Ok(TrustStore::empty().with_pem_certificate(text))
}

/// Reads certificates once before the client does, which panics over a bad one.
fn check(pem: &[u8]) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it has no certificate".to_owned());
    }
    Ok(())
}
