//! One ENI of the document.

use std::collections::BTreeSet;
use std::net::IpAddr;

use datapath_common::mark::MarkLayout;
use ipnet::IpNet;

use super::blocks::{self, Around, Claim};
use super::{exclusion, values};
use crate::intent::Eni;
use crate::node::document::{self, EniSpec};
use crate::node::problem::Findings;
use crate::numbers::ENI_MAX;
use crate::types::{EniNumber, MacAddr};

/// What holds for all ENIs of the node.
pub(super) struct Context<'a> {
    pub(super) mark: MarkLayout,
    pub(super) spec: &'a EniSpec,
    /// The node's internal addresses.
    pub(super) node: &'a [IpAddr],
}

/// Checks one ENI: the ENI when it is whole, and its claims to addresses in any case.
pub(super) fn check(
    key: &str,
    doc: &document::Eni,
    context: &Context<'_>,
    findings: &mut Findings,
) -> (Option<Eni>, Vec<Claim>) {
    let path = &format!("status.eni.enis.{key}");
    if key.is_empty() {
        findings.refuse("status.eni.enis", "", "the ENI's id as key (eni-0abc)");
    }
    if !doc.id.is_empty() && doc.id != key {
        findings.refuse(
            format_args!("{path}.id"),
            &doc.id,
            format_args!("{key:?}, its key, or none"),
        );
    }
    let number = number(path, doc.number, context.mark, findings);
    let mac = mac(path, &doc.mac, findings);
    let public_address = (!doc.public_ip.is_empty())
        .then(|| values::ipv4(findings, format_args!("{path}.public-ip"), &doc.public_ip));
    let subnet = values::subnet(
        findings,
        format_args!("{path}.subnet.cidr"),
        &doc.subnet.cidr,
    );
    let vpc_cidrs = vpc_cidrs(path, &doc.vpc, findings);

    let use_primary = context.spec.use_primary_address.unwrap_or(false);
    let use_primary_address = use_primary && doc.number != 0;
    let mut around = Around {
        path,
        primary: None,
        use_primary: use_primary_address,
        subnet,
        node: context.node,
    };
    let at_ip = format!("{path}.ip");
    let primary = values::ipv4(findings, &at_ip, &doc.ip).filter(|ip| {
        blocks::is_in_subnet(IpNet::from(IpAddr::from(*ip)), &around, &at_ip, findings)
    });
    around.primary = primary;
    let mut claims = blocks::read(doc, &around, findings);
    let mut blocks: BTreeSet<IpNet> = claims.iter().map(|claim| claim.net).collect();
    if let Some(primary) = primary.map(|ip| IpNet::from(IpAddr::from(ip))) {
        if use_primary_address {
            blocks.insert(primary);
        }
        claims.push(Claim {
            net: primary,
            path: at_ip,
        });
    }
    if use_primary {
        let note = if use_primary_address {
            format!(
                "{key}: its device has no address, so the kernel asks for the gateway with another \
                 ENI's"
            )
        } else {
            format!("ignored on {key}, the primary ENI: its address is the host's")
        };
        findings.note("spec.eni.use-primary-address", format_args!("{note}"));
    }
    let by_number = exclusion::by_number(doc.number, context.spec);
    let by_tags = exclusion::by_tags(&doc.tags, context.spec);
    (
        (|| {
            Some(Eni {
                id: key.to_owned(),
                number: number?,
                mac: mac?,
                primary_address: primary?,
                public_address: public_address.flatten(),
                subnet: subnet?,
                subnet_id: doc.subnet.id.clone(),
                tags: doc.tags.clone(),
                vpc_cidrs,
                blocks,
                excluded: by_number.or_else(|| by_tags.clone()),
                excluded_by_tags: by_tags,
                bound_to: Vec::new(),
                use_primary_address,
            })
        })(),
        claims,
    )
}

fn number(path: &str, number: i64, mark: MarkLayout, findings: &mut Findings) -> Option<EniNumber> {
    let max = mark.max_eni().min(u32::from(ENI_MAX));
    match u8::try_from(number) {
        Ok(small) if u32::from(small) <= max => Some(EniNumber(small)),
        Ok(_) | Err(_) => {
            findings.refuse(
                format_args!("{path}.number"),
                &number.to_string(),
                format_args!("0 to {max} (what packet mark and routing tables have room for)"),
            );
            None
        }
    }
}

fn mac(path: &str, text: &str, findings: &mut Findings) -> Option<MacAddr> {
    let mac = text.parse::<MacAddr>().ok().filter(|mac| mac.is_unicast());
    if mac.is_none() {
        findings.refuse(
            format_args!("{path}.mac"),
            text,
            "a unicast MAC address, six bytes in hexadecimal with colons (0a:11:22:33:44:55)",
        );
    }
    mac
}

/// The VPC's CIDRs, the primary one first, each once.
fn vpc_cidrs(path: &str, vpc: &document::Vpc, findings: &mut Findings) -> Vec<IpNet> {
    let primary = values::vpc(
        findings,
        format_args!("{path}.vpc.primary-cidr"),
        &vpc.primary_cidr,
    );
    let mut all: Vec<IpNet> = primary.into_iter().collect();
    for (i, text) in vpc.cidrs.iter().enumerate() {
        if let Some(net) = values::vpc(findings, format_args!("{path}.vpc.cidrs[{i}]"), text)
            && !all.contains(&net)
        {
            all.push(net);
        }
    }
    all
}
