//! Sources of a node's rules: three renderings of our own, in the form of kube-proxy's, and the
//! real kube-proxy in two modes.

use anyhow::Result;
use testkit::fabric::Fabric;
use testkit::kubernetes::ProxyMode;

use crate::iptables::{self, Tool};
use crate::kube_proxy::KubeProxy;
use crate::model::Served;
use crate::nftables;

/// Kind of service rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    IptablesLegacy,
    IptablesNft,
    Nftables,
    KubeProxy(ProxyMode),
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IptablesLegacy => "iptables-legacy",
            Self::IptablesNft => "iptables-nft",
            Self::Nftables => "nftables",
            Self::KubeProxy(ProxyMode::Iptables) => "kube-proxy iptables",
            Self::KubeProxy(ProxyMode::Nftables) => "kube-proxy nftables",
        }
    }

    /// A number of its own, from 0 on.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::IptablesLegacy => 0,
            Self::IptablesNft => 1,
            Self::Nftables => 2,
            Self::KubeProxy(ProxyMode::Iptables) => 3,
            Self::KubeProxy(ProxyMode::Nftables) => 4,
        }
    }

    /// Installs the rules on a node. The result must live as long as the rules.
    pub(crate) fn install(self, fabric: &Fabric, served: &[Served]) -> Result<Option<KubeProxy>> {
        let node = &fabric.node;
        let proxy = match self {
            Self::KubeProxy(mode) => Some(KubeProxy::start(fabric, mode, served)?),
            Self::IptablesLegacy | Self::IptablesNft | Self::Nftables => None,
        };
        for family in served {
            let tool = match self {
                Self::IptablesLegacy => Tool::Legacy,
                // kube-proxy uses the tools of this backend.
                Self::IptablesNft | Self::KubeProxy(ProxyMode::Iptables) => Tool::Nft,
                Self::Nftables | Self::KubeProxy(ProxyMode::Nftables) => {
                    if proxy.is_none() {
                        nftables::apply(node, &nftables::kube_proxy(family))?;
                    }
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
