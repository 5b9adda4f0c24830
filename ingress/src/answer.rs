//! Output of plugins, by the versions 0.3.1 to 1.1.0 of the specification.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

/// A result of ADD.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// As it came.
    pub(crate) result: Value,
}

/// A plugin's output when it fails.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Printed {
    pub(crate) code: u32,
    #[serde(default)]
    pub(crate) msg: String,
    #[serde(default)]
    pub(crate) details: String,
}

impl Answer {
    /// Reads what ADD printed. Of two addresses of one family the first counts.
    ///
    /// # Errors
    /// The fault in the output.
    pub(crate) fn parse(printed: &[u8]) -> Result<Self, String> {
        let result: Value = serde_json::from_slice(printed)
            .map_err(|error| format!("its result is not valid JSON: {error}"))?;
        let ips = result.get("ips").and_then(Value::as_array);
        let ips = ips.filter(|ips| !ips.is_empty());
        let ips = ips.ok_or("its result has no ips; expected a list with an address")?;
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
        for ip in ips {
            let address = ip.get("address").and_then(Value::as_str).and_then(address);
            let address = address.ok_or_else(|| {
                format!(
                    "ips: {ip} is refused; expected an object with an address and its prefix length"
                )
            })?;
            if !addresses
                .iter()
                .any(|other| other.is_ipv4() == address.is_ipv4())
            {
                addresses.insert(address);
            }
        }
        Ok(Self { addresses, result })
    }
}

/// The address of a text such as `10.0.0.1/24`.
fn address(text: &str) -> Option<IpAddr> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length: u8 = length.parse().ok()?;
    (length <= longest).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_every_version_are_read() {
        let v4: IpAddr = "10.0.1.5".parse().unwrap();
        let v6: IpAddr = "2001:db8::5".parse().unwrap();
        for (text, expected) in [
            (
                r#"{"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.0.1.5/24",
                    "gateway": "10.0.1.1"}], "dns": {}}"#,
                vec![v4],
            ),
            (
                r#"{"cniVersion": "0.4.0", "ips": [{"version": "6", "address": "2001:db8::5/64"}]}"#,
                vec![v6],
            ),
            (
                r#"{"cniVersion": "1.0.0", "interfaces": [], "ips": [{"address": "10.0.1.5/32"},
                    {"address": "2001:db8::5/128", "interface": null}]}"#,
                vec![v4, v6],
            ),
            (
                r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.0.1.5/24"},
                    {"address": "10.0.1.6/24"}], "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}]}"#,
                vec![v4],
            ),
        ] {
            let answer = Answer::parse(text.as_bytes()).unwrap();
            assert_eq!(
                answer.addresses.into_iter().collect::<Vec<_>>(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for (text, message) in [
            ("", "not valid JSON"),
            ("hello", "not valid JSON"),
            ("[]", "has no ips"),
            (r#"{"ips": []}"#, "has no ips"),
            (r#"{"ips": null}"#, "has no ips"),
            (
                r#"{"ips": [{"address": "10.0.0.1"}]}"#,
                "ips: {\"address\":\"10.0.0.1\"} is refused",
            ),
            (r#"{"ips": [{"address": "10.0.0.1/33"}]}"#, "is refused"),
            (r#"{"ips": [7]}"#, "ips: 7 is refused"),
        ] {
            let error = Answer::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
