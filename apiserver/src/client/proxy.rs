//! Proxy through which the API server is reached.
//!
//! Only a kubeconfig names one. Variables of the environment are often injected for other programs,
//! and a node's API server is rarely beyond their proxy.

use anyhow::{Result, bail};
use hyper::Uri;
use kube::config::{ExecConfig, Kubeconfig};

use super::no_proxy::NoProxy;

/// Variables that list what is reached without a proxy; the first that is not empty counts.
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// Stands in a kubeconfig so that kube does not read the environment. No connection uses it.
const UNUSED: &str = "http://unused.invalid";

/// A proxy, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// By the method CONNECT (RFC 9110, 9.3.6).
    Http(Uri),
    /// By SOCKS 5 (RFC 1928); the proxy resolves names.
    Socks(Uri),
}

/// Takes the proxy of the current context out of a kubeconfig.
pub(crate) fn take(kubeconfig: &mut Kubeconfig) -> Option<String> {
    let current = kubeconfig.current_context.as_ref();
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts.find(|one| Some(&one.name) == current);
    let context = context.and_then(|one| one.context.clone());
    let mut taken = None;
    for named in &mut kubeconfig.clusters {
        let Some(cluster) = &mut named.cluster else {
            continue;
        };
        let proxy = cluster.proxy_url.replace(UNUSED.to_owned());
        if context.as_ref().is_some_and(|c| c.cluster == named.name) {
            taken = proxy.filter(|url| !url.is_empty());
        }
    }
    taken
}

/// Gives a credential plugin the cluster as the kubeconfig describes it.
pub(crate) fn restore(exec: &mut ExecConfig, proxy: Option<&String>) {
    if let Some(cluster) = &mut exec.cluster {
        cluster.proxy_url = proxy.cloned();
    }
}

/// Chooses the proxy to a server: the kubeconfig's, unless the exceptions cover the server.
///
/// # Errors
/// When the URL is none of a proxy.
pub(super) fn choose(url: Option<&str>, server: &Uri, exceptions: &str) -> Result<Option<Proxy>> {
    let Some(url) = url else { return Ok(None) };
    let proxy = parse(url)?;
    let direct = NoProxy::new(exceptions).covers(server);
    Ok(Some(proxy).filter(|_| !direct))
}

/// Reads what the environment lists to be reached without a proxy.
pub(super) fn exceptions() -> String {
    let values = EXCEPTIONS.iter().filter_map(std::env::var_os);
    let mut values = values.map(|value| value.to_string_lossy().into_owned());
    values
        .find(|value| !value.trim().is_empty())
        .unwrap_or_default()
}

fn parse(url: &str) -> Result<Proxy> {
    let uri = url.parse::<Uri>().ok();
    let host = |uri: &Uri| uri.host().is_some_and(|host| !host.is_empty());
    if let Some(uri) = uri.filter(host) {
        match uri.scheme_str() {
            Some("http") => return Ok(Proxy::Http(uri)),
            Some("socks5" | "socks5h") if uri.port().is_some() => return Ok(Proxy::Socks(uri)),
            Some(_) | None => {}
        }
    }
    bail!(
        "proxy-url: {:?} is refused; allowed: http:// or socks5:// with a host and a port \
         (http://proxy.example:3128), or no proxy-url, to reach the API server directly",
        without_credentials(url)
    );
}

/// A proxy's URL without its password, which must not stand in a log.
fn without_credentials(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else {
        return url.to_owned();
    };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{scheme}://...@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(proxy: &str) -> Kubeconfig {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: here,
              contexts: [{{name: here, context: {{cluster: ours}}}}],
              clusters: [
                {{name: other, cluster: {{server: 'https://10.9.9.9', proxy-url: 'http://other'}}}},
                {{name: ours, cluster: {{server: 'https://10.0.0.1:7443'{proxy}}}}}]}}"
        );
        Kubeconfig::from_yaml(&text).unwrap()
    }

    #[test]
    fn the_proxy_is_the_current_cluster_s() {
        for (given, expected) in [
            ("", None),
            (", proxy-url: ''", None),
            (", proxy-url: 'http://p:1'", Some("http://p:1")),
        ] {
            let mut kubeconfig = kubeconfig(given);
            assert_eq!(take(&mut kubeconfig).as_deref(), expected, "{given}");
            for named in kubeconfig.clusters {
                let left = named.cluster.unwrap().proxy_url;
                assert_eq!(left.as_deref(), Some(UNUSED), "kube reads the environment");
            }
        }
    }

    #[test]
    fn a_proxy_is_used_except_where_it_is_not_to_be() {
        let server = Uri::from_static("https://10.0.0.1:7443");
        let http = Uri::from_static("http://proxy.example:3128");
        let chosen = |url, exceptions| choose(url, &server, exceptions).unwrap();
        assert_eq!(chosen(None, ""), None);
        let url = Some("http://proxy.example:3128");
        assert_eq!(chosen(url, ""), Some(Proxy::Http(http)));
        assert_eq!(chosen(url, "10.0.0.0/8"), None);
        for url in ["socks5://127.0.0.1:1080", "socks5h://127.0.0.1:1080"] {
            let socks = Proxy::Socks(Uri::try_from(url).unwrap());
            assert_eq!(chosen(Some(url), ""), Some(socks));
        }
    }

    #[test]
    fn another_url_is_refused_without_its_password() {
        let server = Uri::from_static("https://10.0.0.1:7443");
        for url in [
            "proxy.corp:3128",
            "proxy.corp",
            "ftp://proxy.corp",
            "https://proxy.corp",
            "http://",
            "http://a b",
            "socks5://proxy.corp",
            "ftp://user:secret@proxy.corp:21",
        ] {
            let error = choose(Some(url), &server, "").unwrap_err().to_string();
            assert!(error.starts_with("proxy-url: \""), "{error}");
            assert!(error.contains("allowed: http:// or socks5://"), "{error}");
            assert!(!error.contains("secret"), "{error}");
            assert!(!error.contains("feature"), "{error}");
        }
    }
}
