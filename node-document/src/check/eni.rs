//! One ENI of the document.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ids::{EniNumber, MacAddr};
use api::types::Readiness;
use ipnet::{IpNet, Ipv4Net};
use loader::intent::{Eni, OtherEni, Problem};

use super::blocks::{self, Around, Claim};
use super::{exclusion, values};
use crate::fields;
use crate::fields::{EniSpec, Entry};
use crate::problem::Findings;

/// Facts that apply to all ENIs of the node.
pub(super) struct Context<'a> {
    pub(super) spec: &'a EniSpec,
    /// The document's fields of a wrong type.
    pub(super) wrong: &'a [Problem],
    /// The node's internal addresses.
    pub(super) node: &'a [IpAddr],
}

/// Result of checking an entry.
pub(super) enum Checked {
    /// A valid entry, which may be excluded, with its claims to addresses for pods.
    Whole(Box<Eni>, Vec<Claim>),
    /// An unusable entry, or an excluded one that is not valid.
    Other(OtherEni),
}

/// Checks one entry. A fault of the whole entry becomes its reason, and one of a part is a finding.
pub(super) fn check(
    key: &str,
    entry: &Entry,
    context: &Context<'_>,
    findings: &mut Findings,
) -> Checked {
    let mut of = OneEni::new(key, entry, context);
    let device_index = of.device_index();
    let mac = of.mac();
    let by_number = device_index.and_then(|index| exclusion::by_number(index, context.spec));
    let by_tags = exclusion::by_tags(&entry.eni.tags, context.spec);
    let excluded = by_number.or_else(|| by_tags.clone());
    if excluded.is_none()
        && let Some(index) = device_index
        && let Some(doubt) = exclusion::doubt(index, &entry.eni.tags, context)
    {
        of.fatal.put(doubt);
    }
    let whole = of.whole(device_index.unwrap_or_default(), mac);
    let OneEni { fatal, partial, .. } = of;
    let reason = fatal.reason();
    if excluded.is_none() {
        findings.extend(fatal);
        findings.extend(partial);
    }
    match (whole, &excluded, reason) {
        (Some((mut eni, claims)), _, None) => {
            eni.excluded = excluded;
            eni.excluded_by_tags = by_tags;
            Checked::Whole(Box::new(eni), claims)
        }
        (_, _, reason) => {
            let not_ready = || Readiness::not_ready(reason.unwrap_or_default());
            Checked::Other(OtherEni {
                id: key.to_owned(),
                device_index,
                mac,
                readiness: excluded.map_or_else(not_ready, |reason| Readiness::Excluded { reason }),
                whole: None,
            })
        }
    }
}

/// State of checking an entry.
struct OneEni<'a> {
    key: &'a str,
    path: String,
    doc: &'a fields::Eni,
    wrong: &'a [Problem],
    context: &'a Context<'a>,
    /// Problems that make the entry unusable.
    fatal: Findings,
    /// Problems that make a part of it unusable.
    partial: Findings,
}

impl<'a> OneEni<'a> {
    fn new(key: &'a str, entry: &'a Entry, context: &'a Context<'a>) -> Self {
        let path = format!("status.eni.enis.{key}");
        let mut fatal = Findings::default();
        let mut partial = Findings::default();
        for problem in &entry.wrong {
            let dot = if problem.path.is_empty() { "" } else { "." };
            fatal.add(
                format_args!("{path}{dot}{}", problem.path),
                &problem.message,
            );
        }
        for problem in &entry.elements {
            partial.add(format_args!("{path}.{}", problem.path), &problem.message);
        }
        let doc = &entry.eni;
        if key.is_empty() {
            fatal.refuse("status.eni.enis", "", "the ENI's id as key (eni-0abc)");
        }
        if !doc.id.is_empty() && doc.id != key {
            let allowed = format!("{key:?}, its key, or none");
            fatal.refuse(format_args!("{path}.id"), &doc.id, allowed);
        }
        Self {
            key,
            path,
            doc,
            wrong: &entry.wrong,
            context,
            fatal,
            partial,
        }
    }

    /// True if a field could be read.
    fn is_read(&self, field: &str) -> bool {
        let mut wrong = self.wrong.iter();
        !wrong.any(|problem| problem.path.is_empty() || problem.path == field)
    }

    fn device_index(&mut self) -> Option<u32> {
        if !self.is_read("number") {
            return None;
        }
        let number = self.doc.number;
        let index = u32::try_from(number).ok();
        if index.is_none() {
            let path = format_args!("{}.number", self.path);
            self.fatal.refuse(path, &number.to_string(), "0 or more");
        }
        index
    }

    fn mac(&mut self) -> Option<MacAddr> {
        let text = &self.doc.mac;
        let mac = text.parse::<MacAddr>().ok().filter(|mac| mac.is_unicast());
        if mac.is_none() && self.is_read("mac") {
            let allowed =
                "a unicast MAC address, six bytes in hexadecimal with colons (0a:11:22:33:44:55)";
            self.fatal
                .refuse(format_args!("{}.mac", self.path), text, allowed);
        }
        mac
    }

    /// The ENI and its claims, as far as they can be read.
    fn whole(&mut self, device_index: u32, mac: Option<MacAddr>) -> Option<(Eni, Vec<Claim>)> {
        let doc = self.doc;
        let public_address = (!doc.public_ip.is_empty()).then(|| {
            let path = format_args!("{}.public-ip", self.path);
            values::ipv4(&mut self.partial, path, &doc.public_ip)
        });
        let vpc_cidrs = self.vpc_cidrs();
        let use_primary = self.context.spec.use_primary_address.unwrap_or(false);
        let use_primary_address = use_primary && device_index != 0;
        let mut around = Around {
            path: &self.path.clone(),
            primary: None,
            use_primary: use_primary_address,
            subnet: None,
            has_ipv4: true,
            node: self.context.node,
        };
        let mut of_ipv4 = Findings::default();
        let ipv4 = self.ipv4(&mut of_ipv4);
        around.subnet = ipv4.map(|(_, subnet)| subnet);
        around.primary = ipv4.map(|(address, _)| address);
        around.has_ipv4 = ipv4.is_some();
        let claims = blocks::read(doc, &around, &mut self.partial);
        let has_ipv6 = claims.iter().any(|claim| claim.net.addr().is_ipv6());
        let is_invalid = [&doc.ip, &doc.subnet.cidr];
        let is_invalid = ipv4.is_none() && is_invalid.iter().all(|text| !text.is_empty());
        if has_ipv6 && !is_invalid {
            self.partial.extend(of_ipv4);
        } else {
            self.fatal.extend(of_ipv4);
        }
        self.note_primary_address(use_primary, use_primary_address);
        let (primary_address, subnet) = ipv4.unzip();
        let eni = Eni {
            id: self.key.to_owned(),
            number: EniNumber::PRIMARY,
            device_index,
            mac: mac?,
            primary_address,
            public_address: public_address.flatten(),
            subnet,
            subnet_id: doc.subnet.id.clone(),
            tags: doc.tags.clone(),
            vpc_cidrs,
            blocks: BTreeSet::new(),
            kept: BTreeSet::new(),
            excluded: None,
            excluded_by_tags: None,
            bound_to: Vec::new(),
            use_primary_address,
            stale: None,
        };
        Some((eni, claims))
    }

    /// The ENI's own address and its subnet. An ENI with neither, and without IPv4 blocks, has IPv6
    /// alone.
    fn ipv4(&self, findings: &mut Findings) -> Option<(std::net::Ipv4Addr, Ipv4Net)> {
        let doc = self.doc;
        let mut listed = doc.addresses.iter();
        let lists_ipv4 = !doc.prefixes.is_empty()
            || listed.any(|text| text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()));
        if doc.ip.is_empty() && doc.subnet.cidr.is_empty() && !lists_ipv4 {
            return None;
        }
        let at_subnet = format!("{}.subnet.cidr", self.path);
        let subnet = values::subnet(findings, at_subnet, &doc.subnet.cidr);
        let at_ip = format!("{}.ip", self.path);
        let address = values::ipv4(findings, &at_ip, &doc.ip)?;
        let net = IpNet::from(IpAddr::from(address));
        let is_inside = blocks::is_in_subnet(net, subnet, &at_ip, findings);
        is_inside.then_some((address, subnet?))
    }

    /// The VPC's CIDRs, the primary one first, each once.
    fn vpc_cidrs(&mut self) -> Vec<IpNet> {
        let vpc = &self.doc.vpc;
        let path = format!("{}.vpc", self.path);
        let at_primary = format_args!("{path}.primary-cidr");
        let primary = values::vpc(&mut self.fatal, at_primary, &vpc.primary_cidr);
        let mut all: Vec<IpNet> = primary.into_iter().collect();
        for (i, text) in vpc.cidrs.iter().enumerate() {
            let net = values::vpc(&mut self.partial, format_args!("{path}.cidrs[{i}]"), text);
            all.extend(net.filter(|net| !all.contains(net)));
        }
        all
    }

    fn note_primary_address(&mut self, is_wanted: bool, is_used: bool) {
        if !is_wanted {
            return;
        }
        let key = self.key;
        let note = if is_used {
            format!(
                "{key}: its device has no address, so the kernel resolves the gateway with another ENI's"
            )
        } else {
            format!("ignored on {key}, the primary ENI: its address is the host's")
        };
        self.partial.note("spec.eni.use-primary-address", note);
    }
}
