//! Servers that are reached without a proxy, as `NO_PROXY` lists them.
//!
//! Forms are those of Go's `golang.org/x/net/http/httpproxy`, which kubectl and kubelet use:
//! addresses, CIDRs, names with their subdomains, `.name` or `*.name` for subdomains alone, each
//! with a port or without, and `*`. An entry of another form matches nothing.

use std::net::IpAddr;

use hyper::Uri;
use ipnet::IpNet;

/// A list of exceptions.
#[derive(Debug)]
pub(super) struct NoProxy(Vec<Exception>);

#[derive(Debug)]
enum Exception {
    /// Everything.
    All,
    /// Addresses of a range.
    Net(IpNet),
    /// An address, at one port or at any.
    Addr(IpAddr, Option<u16>),
    /// A name's subdomains, and the name itself where `itself` is set.
    Name {
        name: String,
        itself: bool,
        port: Option<u16>,
    },
}

/// A server as exceptions see it.
struct Target {
    host: String,
    addr: Option<IpAddr>,
    port: Option<u16>,
}

impl NoProxy {
    /// Reads a list, whose entries commas separate.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.split(',').filter_map(exception).collect())
    }

    /// Checks whether a server is reached without a proxy.
    pub(super) fn covers(&self, server: &Uri) -> bool {
        let Some(host) = server.host() else {
            return false;
        };
        let host = normal(host);
        let default = match server.scheme_str() {
            Some("http") => Some(80),
            Some("https") => Some(443),
            Some(_) | None => None,
        };
        let target = Target {
            addr: host.parse().ok().map(|addr: IpAddr| addr.to_canonical()),
            port: server.port_u16().or(default),
            host,
        };
        self.0.iter().any(|exception| exception.covers(&target))
    }
}

impl Exception {
    fn covers(&self, target: &Target) -> bool {
        let at = |port: &Option<u16>| port.is_none() || *port == target.port;
        match self {
            Self::All => true,
            Self::Net(net) => target.addr.is_some_and(|addr| net.contains(&addr)),
            Self::Addr(addr, port) => target.addr == Some(*addr) && at(port),
            Self::Name { name, itself, port } => {
                let rest = target.host.strip_suffix(name.as_str());
                let is_covered = match rest {
                    Some("") => *itself,
                    Some(rest) => rest.ends_with('.'),
                    None => false,
                };
                is_covered && at(port)
            }
        }
    }
}

fn exception(entry: &str) -> Option<Exception> {
    let entry = entry.trim();
    if entry == "*" {
        return Some(Exception::All);
    }
    if let Ok(net) = entry.parse() {
        return Some(Exception::Net(net));
    }
    let whole = normal(entry);
    if let Ok(addr) = whole.parse::<IpAddr>() {
        return Some(Exception::Addr(addr.to_canonical(), None));
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) => (normal(host), Some(port.parse().ok()?)),
        None => (whole, None),
    };
    if let Ok(addr) = host.parse::<IpAddr>() {
        return Some(Exception::Addr(addr.to_canonical(), port));
    }
    let host = host.strip_prefix('*').unwrap_or(&host);
    let (name, itself) = match host.strip_prefix('.') {
        Some(name) => (name, false),
        None => (host, true),
    };
    (!name.is_empty()).then(|| Exception::Name {
        name: name.to_owned(),
        itself,
        port,
    })
}

/// A host in lower case, without brackets and without the dot of the root.
fn normal(host: &str) -> String {
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = inner.unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_covers_what_it_names_and_nothing_else() {
        let v4 = "https://10.0.0.1:7443";
        let v6 = "https://[fd00::1]:7443";
        let name = "https://api.Cluster.example";
        for (list, server, covered) in [
            ("", v4, false),
            ("*", v4, true),
            (" * ", name, true),
            ("10.0.0.1", v4, true),
            ("10.0.0.2", v4, false),
            ("10.0.0.1:7443", v4, true),
            ("10.0.0.1:443", v4, false),
            ("10.0.0.0/8", v4, true),
            ("10.0.0.1/32", v4, true),
            ("10.1.0.0/16", v4, false),
            ("::ffff:10.0.0.1", v4, true),
            ("fd00::1", v6, true),
            ("[fd00::1]", v6, true),
            ("[fd00::1]:7443", v6, true),
            ("[fd00::1]:443", v6, false),
            ("fd00::/8", v6, true),
            ("fd00::/8", v4, false),
            ("10.0.0.0/8", name, false),
            ("api.cluster.example", name, true),
            ("API.CLUSTER.EXAMPLE.", name, true),
            ("cluster.example", name, true),
            (".cluster.example", name, true),
            ("*.cluster.example", name, true),
            ("*.cluster.example:443", name, true),
            ("*.cluster.example:6443", name, false),
            (".api.cluster.example", name, false),
            ("ster.example", name, false),
            ("example:443", name, true),
            ("localhost, ,10.0.0.0/8,", v4, true),
            (",,a b,:,10.0.0.1:x,http://,/", v4, false),
        ] {
            let uri = Uri::try_from(server).unwrap();
            assert_eq!(NoProxy::new(list).covers(&uri), covered, "{list} {server}");
        }
    }
}
