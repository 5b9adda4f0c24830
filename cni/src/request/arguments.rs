//! `CNI_ARGS`: what the runtime or its user says about one container.

use std::net::IpAddr;

use crate::agent::wire::Pod;
use crate::failure::{Code, Failure};

/// Fields of `CNI_ARGS` that the plugin uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The pod, as Kubernetes' runtimes name it.
    pub pod: Pod,
    /// The pool that the container's addresses are to come from.
    pub pool: Option<String>,
    /// The addresses that the container is to have.
    pub addresses: Vec<IpAddr>,
}

impl Arguments {
    /// Reads `KEY=VALUE` pairs with semicolons between them.
    ///
    /// # Errors
    /// For text that is no pair, for a wrong value, and for an unknown key unless `IgnoreUnknown`
    /// is set. The reference plugins do the same: a misspelt key would otherwise give a container
    /// the wrong pool.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut arguments = Self::default();
        let mut unknown = Vec::new();
        let mut ignore_unknown = false;
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(invalid(&format!("{pair:?} is not KEY=VALUE")));
            };
            let given = (!value.is_empty()).then(|| value.to_owned());
            match key {
                "IgnoreUnknown" => ignore_unknown = switch(value)?,
                "K8S_POD_NAMESPACE" => arguments.pod.namespace = given,
                "K8S_POD_NAME" => arguments.pod.name = given,
                "K8S_POD_UID" => arguments.pod.uid = given,
                // Its value equals CNI_CONTAINERID.
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                "TOWPATH_POOL" => arguments.pool = given,
                "IP" => {
                    for part in value.split(',').filter(|part| !part.is_empty()) {
                        arguments.addresses.push(address(part).ok_or_else(|| {
                            let allowed = "addresses with commas between them are allowed";
                            invalid(&format!("IP has {part:?}: {allowed}"))
                        })?);
                    }
                }
                _ => unknown.push(key),
            }
        }
        if !ignore_unknown && !unknown.is_empty() {
            return Err(invalid(&format!(
                "unknown keys {}; IgnoreUnknown=1 ignores them",
                unknown.join(", ")
            )));
        }
        if arguments.pool.is_some() && !arguments.addresses.is_empty() {
            let both = "TOWPATH_POOL and IP cannot be given both: an address has its pool";
            return Err(invalid(both));
        }
        Ok(arguments)
    }
}

/// An address, with a prefix length or without: ours is always the pod's alone.
#[must_use]
pub fn address(text: &str) -> Option<IpAddr> {
    match text.split_once('/') {
        None => text.parse().ok(),
        Some(_) => text.parse::<ipnet::IpNet>().ok().map(|net| net.addr()),
    }
}

/// A switch as the reference plugins read it (Go's `strconv.ParseBool`).
fn switch(text: &str) -> Result<bool, Failure> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(invalid(&format!(
            "IgnoreUnknown is {text:?}: 1, 0, true and false are allowed"
        ))),
    }
}

fn invalid(message: &str) -> Failure {
    Failure::new(Code::InvalidEnvironment, format!("CNI_ARGS: {message}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_containerd_says_is_understood() {
        let arguments = Arguments::parse(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME=front-0;\
             K8S_POD_INFRA_CONTAINER_ID=0a1b;K8S_POD_UID=77-aa;SOMETHING=new",
        )
        .unwrap();
        assert_eq!(
            arguments.pod,
            Pod {
                namespace: Some("web".into()),
                name: Some("front-0".into()),
                uid: Some("77-aa".into())
            }
        );
        assert_eq!(Arguments::parse("").unwrap(), Arguments::default());
    }

    #[test]
    fn addresses_come_with_or_without_a_prefix_length() {
        let arguments = Arguments::parse("IP=10.0.1.20/24,2001:db8::20").unwrap();
        let expected: [IpAddr; 2] = [
            "10.0.1.20".parse().unwrap(),
            "2001:db8::20".parse().unwrap(),
        ];
        assert_eq!(arguments.addresses, expected);
        let arguments = Arguments::parse("TOWPATH_POOL=blue").unwrap();
        assert_eq!(arguments.pool.as_deref(), Some("blue"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("A", "\"A\" is not KEY=VALUE"),
            ("A=1", "unknown keys A;"),
            ("A=1;IgnoreUnknown=0", "unknown keys A;"),
            ("IgnoreUnknown=maybe", "IgnoreUnknown is \"maybe\""),
            ("IP=10.0.0.300", "IP has \"10.0.0.300\""),
            ("IP=10.0.0.3/33", "IP has \"10.0.0.3/33\""),
            ("IP=10.0.0.3;TOWPATH_POOL=a", "cannot be given both"),
        ] {
            let failure = Arguments::parse(text).unwrap_err();
            assert_eq!(failure.code.number(), 4, "{text}");
            assert!(failure.message.contains(named), "{failure}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            if let Err(failure) = Arguments::parse(&text) {
                prop_assert_eq!(failure.code.number(), 4);
            }
        }

        #[test]
        fn what_is_given_comes_out(
            namespace in "[a-z0-9-]{1,20}",
            name in "[a-z0-9.-]{1,20}",
            pool in proptest::option::of("[a-z]{1,10}"),
            first in any::<u32>(),
        ) {
            let pool_text = pool.as_ref().map(|pool| format!(";TOWPATH_POOL={pool}"));
            let address = IpAddr::from(first.to_be_bytes());
            let ip_text = if pool.is_none() { format!(";IP={address}") } else { String::new() };
            let arguments = Arguments::parse(&format!(
                "K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}{}{ip_text}",
                pool_text.unwrap_or_default()
            )).unwrap();
            prop_assert_eq!(arguments.pod.namespace, Some(namespace));
            prop_assert_eq!(arguments.pod.name, Some(name));
            prop_assert_eq!(arguments.addresses.is_empty(), pool.is_some());
            prop_assert_eq!(arguments.pool, pool);
        }
    }
}
