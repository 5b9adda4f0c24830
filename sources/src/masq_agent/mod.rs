//! The ip-masq-agent file: destinations that are not masqueraded.

mod duration;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use document::nullable;
use ipnet::IpNet;
use loader::intent::masquerade::{AgentCidrs, is_plain};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::watch;

use crate::follow::{self, Followed, Fragment, Fragments, Source};

/// The files are never read more often than this without a sign of a change, whatever
/// `resyncInterval` says.
const RESYNC_MIN: Duration = Duration::from_secs(1);

/// Follows an ip-masq-agent file, or a folder of fragments.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch(path: PathBuf) -> watch::Receiver<Followed<AgentCidrs>> {
    follow::watch(path, AgentFiles)
}

/// Says why an ip-masq-agent file, or a folder of fragments, cannot be used as it is now, if so.
#[must_use]
pub fn look(path: &Path) -> Option<String> {
    follow::look(path, &AgentFiles).err()
}

/// Source of ip-masq-agent files.
pub struct AgentFiles;

impl Source for AgentFiles {
    type Content = Fragments;
    type Value = AgentCidrs;

    const NAME: &'static str = "ip-masq-agent file";

    fn read(&self, path: &Path) -> Fragments {
        // The keys of a ConfigMap become names without any extension.
        Fragments::read(path, |_| true)
    }

    fn parse(
        &self,
        path: &Path,
        content: &Fragments,
        _last: Option<&AgentCidrs>,
    ) -> Result<AgentCidrs, String> {
        let fragments = match content {
            Fragments::Missing => {
                let standard = format!("the standard list, as {} is missing", path.display());
                return Ok(AgentCidrs::standard(&standard));
            }
            Fragments::Unreadable(error) => return Err(error.clone()),
            Fragments::Found(fragments) => fragments,
        };
        let mut merged: Option<AgentCidrs> = None;
        for fragment in fragments {
            if let Some(one) = read(fragment)? {
                merge(merged.get_or_insert_default(), one);
            }
        }
        Ok(merged.unwrap_or_else(|| {
            let standard = format!("the standard list, as {} is empty", path.display());
            AgentCidrs::standard(&standard)
        }))
    }

    fn interval(&self, value: Option<&AgentCidrs>) -> Duration {
        let resync = value.and_then(|value| value.resync).unwrap_or_default();
        if resync.is_zero() {
            follow::INTERVAL
        } else {
            resync.clamp(RESYNC_MIN, follow::INTERVAL)
        }
    }
}

/// Adds another fragment: every CIDR of both is exempt, and link-local is masqueraded if one of
/// them requests it.
fn merge(all: &mut AgentCidrs, other: AgentCidrs) {
    for (net, source) in other.cidrs {
        all.cidrs.entry(net).or_insert(source);
    }
    all.masq_link_local |= other.masq_link_local;
    all.masq_link_local_ipv6 |= other.masq_link_local_ipv6;
    all.resync = all.resync.into_iter().chain(other.resync).min();
    all.notes.extend(other.notes);
}

/// Reads one file; `None` where nothing stands in it.
fn read(fragment: &Fragment) -> Result<Option<AgentCidrs>, String> {
    let file = fragment.path.display();
    let place = |error: String| format!("{file}: {error}");
    let text = fragment
        .text
        .as_ref()
        .map_err(|error| place(error.clone()))?;
    let raw: Option<Raw> = document::read(text).map_err(|error| {
        let error = error.to_string();
        // The YAML reader leaves out the place when it is the very first one.
        let is_placed = error.contains(" at line ");
        place(error + if is_placed { "" } else { " at line 1 column 1" })
    })?;
    let Some(raw) = raw else { return Ok(None) };
    let count = raw.cidrs.len();
    if let Some(limit) = raw.cidr_limit.filter(|limit| count as u64 > *limit) {
        return Err(place(format!(
            "nonMasqueradeCIDRs: {count} CIDRs are refused; allowed: at most {limit} (cidrLimit)"
        )));
    }
    let mut read = AgentCidrs {
        masq_link_local: raw.masq_link_local,
        masq_link_local_ipv6: raw.masq_link_local_ipv6,
        resync: raw.resync_interval.map(|interval| interval.0),
        ..AgentCidrs::default()
    };
    for (i, Cidr(net)) in raw.cidrs.into_iter().enumerate() {
        if net.trunc() != net {
            let note = format!("nonMasqueradeCIDRs[{i}]: {net} is taken as {}", net.trunc());
            read.notes.push(place(note));
        }
        read.cidrs.insert(net.trunc(), file.to_string());
    }
    Ok(Some(read))
}

/// The fields of the file. A name that is none of them is an error, because a CIDR list under a
/// wrong name would silently have everything masqueraded.
#[derive(Debug, Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "the fields of an ip-masq-agent file"
)]
struct Raw {
    #[serde(rename = "nonMasqueradeCIDRs", deserialize_with = "nullable")]
    cidrs: Vec<Cidr>,
    #[serde(deserialize_with = "nullable")]
    masq_link_local: bool,
    #[serde(rename = "masqLinkLocalIPv6", deserialize_with = "nullable")]
    masq_link_local_ipv6: bool,
    resync_interval: Option<Interval>,
    cidr_limit: Option<u64>,
}

#[derive(Debug)]
struct Cidr(IpNet);

#[derive(Debug)]
struct Interval(Duration);

/// Reads a text within the reader's own call, so that its errors have line and column.
struct Text<T> {
    allowed: &'static str,
    read: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.allowed)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let allowed = self.allowed;
        (self.read)(text)
            .ok_or_else(|| E::custom(format_args!("{text:?} is refused; allowed: {allowed}")))
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text {
            allowed: "a CIDR of IPv4 or IPv6 (10.0.0.0/8, fd00::/8)",
            read: |text| {
                let net: IpNet = text.parse().ok()?;
                is_plain(net).then_some(Self(net))
            },
        })
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text {
            allowed: "a duration, numbers with ns, us, ms, s, m or h (60s, 1h30m)",
            read: |text| duration::parse(text).map(Self),
        })
    }
}

#[cfg(test)]
mod tests;
