//! Who makes a node's rules: three of our own, in the shape that kube-proxy gives them, and the real
//! one.

use anyhow::Result;
use bpf_tests::fabric::Fabric;

use crate::iptables::{self, Tool};
use crate::kube_proxy::KubeProxy;
use crate::model::Served;
use crate::nftables;

/// A backend of service rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    IptablesLegacy,
    IptablesNft,
    Nftables,
    KubeProxy,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IptablesLegacy => "iptables-legacy",
            Self::IptablesNft => "iptables-nft",
            Self::Nftables => "nftables",
            Self::KubeProxy => "kube-proxy",
        }
    }

    /// Has a node serve. What is returned has to live as long as it is to.
    pub(crate) fn install(self, fabric: &Fabric, served: &[Served]) -> Result<Option<KubeProxy>> {
        let node = &fabric.node;
        let proxy = match self {
            Self::KubeProxy => Some(KubeProxy::start(fabric, served)?),
            Self::IptablesLegacy | Self::IptablesNft | Self::Nftables => None,
        };
        for family in served {
            let tool = match self {
                Self::IptablesLegacy => Tool::Legacy,
                // Debian's kube-proxy has the tools of this one.
                Self::IptablesNft | Self::KubeProxy => Tool::Nft,
                Self::Nftables => {
                    nftables::apply(node, &nftables::kube_proxy(family))?;
                    nftables::apply(node, &nftables::portmap(family))?;
                    nftables::apply(node, &nftables::local_dns(family))?;
                    continue;
                }
            };
            if proxy.is_none() {
                tool.apply(node, family.family, &iptables::kube_proxy(family))?;
            }
            tool.apply(node, family.family, &iptables::portmap(family))?;
            tool.apply(node, family.family, &iptables::local_dns(family))?;
        }
        Ok(proxy)
    }
}
