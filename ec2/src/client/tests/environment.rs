//! Credentials, region, endpoint, proxy and certificates of the environment. A process has one
//! environment, so each case runs this program again as a child.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use cloud::call::query::{Query, What};
use tempfile::TempDir;

use super::played::{Played, Reply, Request};
use crate::{Client, Ec2 as _, Settings};

/// Set in the environment of a child: the calls that it makes.
const CALLS: &str = "TOWPATH_TEST_CALLS";
/// Set in the environment of a child: its settings.
pub(super) const ENDPOINT: &str = "TOWPATH_TEST_ENDPOINT";
const REGION: &str = "TOWPATH_TEST_REGION";
/// The beginning of a line of a child's.
const SAID: &str = "child: ";

/// Keys and a region.
pub(super) const KEYS: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "AKIDENV"),
    ("AWS_SECRET_ACCESS_KEY", "secret"),
    ("AWS_REGION", "eu-west-3"),
];

#[tokio::test]
async fn child() {
    let Ok(calls) = std::env::var(CALLS) else {
        return;
    };
    let settings = Settings {
        endpoint: std::env::var(ENDPOINT).ok(),
        region: std::env::var(REGION).ok(),
        ..Settings::default()
    };
    let client = match Client::connect(&settings).await {
        Ok(client) => client,
        Err(error) => return println!("{SAID}{error}"),
    };
    let query = Query {
        what: What::Vpcs,
        vpcs: BTreeSet::new(),
        page: None,
    };
    for _ in 0..calls.parse().unwrap() {
        match client.read(&query).await {
            Ok(_) => println!("{SAID}ok"),
            Err(failure) => println!("{SAID}{:?}: {failure}", failure.class),
        }
    }
}

/// Runs a child in an environment, and returns its lines.
pub(super) async fn run(calls: u32, environment: &[(&str, &str)]) -> Vec<String> {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "client::tests::environment::child",
            "--nocapture",
        ])
        .env_clear()
        .env("HOME", home.path())
        .env(CALLS, calls.to_string())
        .envs(environment.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|it| it.split_once(SAID));
    lines.map(|(_, line)| line.to_owned()).collect()
}

/// An EC2 that answers each of so many calls.
async fn ec2(calls: usize) -> Played {
    Played::new(vec![Reply::ok("DescribeVpcs", "<vpcSet/>"); calls]).await
}

/// Key and region that a call was signed with.
fn signed(request: &Request) -> (String, String) {
    let header = &request.headers["authorization"];
    let (_, scope) = header.split_once("Credential=").unwrap();
    let mut parts = scope.split('/');
    let key = parts.next().unwrap().to_owned();
    (key, parts.nth(1).unwrap().to_owned())
}

fn signature(key: &str, region: &str) -> (String, String) {
    (key.to_owned(), region.to_owned())
}

/// Credentials as the container's and the instance's endpoint write them.
fn credentials(key: &str) -> Reply {
    Reply::Body(
        200,
        format!(
            r#"{{"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-31T12:00:00Z",
                "AccessKeyId": "{key}", "SecretAccessKey": "secret", "Token": "session",
                "Expiration": "2099-01-31T12:00:00Z"}}"#
        ),
    )
}

pub(super) fn text(path: &Path, content: &str) -> String {
    std::fs::write(path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn keys_and_region_of_the_environment_and_the_setting_before_it() {
    let cases = [
        (vec![("AWS_REGION", "eu-west-3")], "eu-west-3"),
        (
            vec![("AWS_DEFAULT_REGION", "us-gov-west-1")],
            "us-gov-west-1",
        ),
        (
            vec![("AWS_REGION", "eu-west-3"), (REGION, "cn-north-1")],
            "cn-north-1",
        ),
    ];
    for (environment, region) in cases {
        let ec2 = ec2(1).await;
        let mut environment = [&KEYS[..2], &environment].concat();
        environment.push((ENDPOINT, ec2.endpoint()));
        assert_eq!(run(1, &environment).await, ["ok"]);
        assert_eq!(signed(&ec2.seen()[0]), signature("AKIDENV", region));
    }
}

#[tokio::test]
async fn a_call_is_sent_once_whatever_the_environment_says_about_repetitions() {
    let busy = Reply::error(503, "RequestLimitExceeded", "slow down");
    let ok = Reply::ok("DescribeVpcs", "<vpcSet/>");
    let ec2 = Played::new(vec![busy, ok]).await;
    let repetitions = [("AWS_MAX_ATTEMPTS", "5"), ("AWS_RETRY_MODE", "standard")];
    let environment = [&KEYS[..], &repetitions, &[(ENDPOINT, ec2.endpoint())]].concat();
    let lines = run(1, &environment).await;
    assert!(lines[0].starts_with("Throttled: "), "{lines:?}");
    assert_eq!(ec2.seen().len(), 1);
}

#[tokio::test]
async fn pod_identity_and_new_credentials_after_those_that_are_not_accepted() {
    let expired = Reply::error(400, "ExpiredToken", "the token is expired");
    let ok = || Reply::ok("DescribeVpcs", "<vpcSet/>");
    let ec2 = Played::new(vec![ok(), expired, ok()]).await;
    let agent = Played::new(vec![credentials("AKIDPOD1"), credentials("AKIDPOD2")]).await;
    let folder = TempDir::new().unwrap();
    let token = text(&folder.path().join("token"), "pod-token");
    let url = format!("{}/v1/credentials", agent.endpoint());
    let environment = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.as_str()),
        ("AWS_REGION", "eu-west-3"),
        (ENDPOINT, ec2.endpoint()),
    ];
    let lines = run(3, &environment).await;
    let expected = "Credentials: DescribeVpcs: ExpiredToken: the token is expired";
    assert!(lines[1].starts_with(expected), "{lines:?}");
    assert_eq!((lines[0].as_str(), lines[2].as_str()), ("ok", "ok"));
    let keys: Vec<_> = ec2.seen().iter().map(|it| signed(it).0).collect();
    assert_eq!(keys, ["AKIDPOD1", "AKIDPOD1", "AKIDPOD2"]);
    let requests = agent.seen();
    assert_eq!(requests[0].headers["authorization"], "pod-token");
    assert_eq!(requests[0].line, "GET /v1/credentials HTTP/1.1");
}

#[tokio::test]
async fn web_identity_of_a_service_account() {
    let sts = Played::new(vec![Reply::Body(
        200,
        r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
        <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKIDROLE</AccessKeyId>
        <SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>
        <Expiration>2099-01-31T12:00:00Z</Expiration></Credentials>
        </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"#
            .to_owned(),
    )])
    .await;
    let ec2 = ec2(1).await;
    let folder = TempDir::new().unwrap();
    let token = text(&folder.path().join("token"), "account-token");
    let role = "arn:aws-cn:iam::111122223333:role/towpath";
    let environment = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str()),
        ("AWS_ROLE_ARN", role),
        ("AWS_ENDPOINT_URL_STS", sts.endpoint()),
        ("AWS_REGION", "cn-north-1"),
        (ENDPOINT, ec2.endpoint()),
    ];
    assert_eq!(run(1, &environment).await, ["ok"]);
    assert_eq!(signed(&ec2.seen()[0]), signature("AKIDROLE", "cn-north-1"));
    let form = sts.requests().remove(0);
    assert_eq!(form["Action"], "AssumeRoleWithWebIdentity");
    assert_eq!(form["RoleArn"], role);
    assert_eq!(form["WebIdentityToken"], "account-token");
}

#[tokio::test]
async fn the_instances_metadata_has_region_and_credentials_and_no_proxy_is_between() {
    let ec2 = ec2(1).await;
    let proxy = Played::new(Vec::new()).await;
    let metadata = Metadata::new().await;
    let environment = [
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.0.endpoint()),
        ("HTTP_PROXY", proxy.endpoint()),
        ("http_proxy", proxy.endpoint()),
        ("ALL_PROXY", proxy.endpoint()),
        (ENDPOINT, ec2.endpoint()),
    ];
    assert_eq!(run(1, &environment).await, ["ok"]);
    assert_eq!(signed(&ec2.seen()[0]), signature("AKIDIMDS", "ap-south-1"));
    let read = metadata.0.seen();
    let tokens = read.iter().filter(|it| it.line.starts_with("PUT "));
    assert!(tokens.count() > 0, "{read:?}");
    let reads = read.iter().filter(|it| it.line.starts_with("GET "));
    for request in reads {
        assert_eq!(
            request.headers["x-aws-ec2-metadata-token"],
            "metadata-token"
        );
    }
    assert!(proxy.seen().is_empty(), "{:?}", proxy.seen());
}

/// The metadata service of an instance, second version.
struct Metadata(Played);

impl Metadata {
    async fn new() -> Self {
        Self(
            Played::routing(|request| {
                let plain = |text: &str| Reply::Body(200, text.to_owned());
                let path = request.line.split(' ').nth(1).unwrap_or_default();
                match path {
                    "/latest/api/token" => Reply::Token("metadata-token"),
                    "/latest/meta-data/placement/region" => plain("ap-south-1"),
                    it if it.ends_with("/security-credentials/")
                        || it.ends_with("/security-credentials-extended/") =>
                    {
                        plain("node-role")
                    }
                    it if it.ends_with("/node-role") => credentials("AKIDIMDS"),
                    _ => Reply::Body(404, String::new()),
                }
            })
            .await,
        )
    }
}

#[tokio::test]
async fn without_region_or_credentials_nothing_is_sent() {
    let ec2 = ec2(1).await;
    let off = ("AWS_EC2_METADATA_DISABLED", "true");
    let lines = run(1, &[KEYS[0], KEYS[1], off, (ENDPOINT, ec2.endpoint())]).await;
    assert!(lines[0].starts_with("region: not known"), "{lines:?}");
    let lines = run(1, &[KEYS[2], off, (ENDPOINT, ec2.endpoint())]).await;
    let expected = "Credentials: DescribeVpcs: NoCredentials: ";
    assert!(lines[0].starts_with(expected), "{lines:?}");
    assert!(ec2.seen().is_empty(), "{:?}", ec2.seen());
}

#[tokio::test]
async fn endpoints_of_partitions_fips_and_dual_stack_go_through_the_proxy() {
    let cases = [
        (vec![], "ec2.eu-west-3.amazonaws.com"),
        (
            vec![("AWS_USE_FIPS_ENDPOINT", "true")],
            "ec2-fips.eu-west-3.amazonaws.com",
        ),
        (
            vec![("AWS_USE_DUALSTACK_ENDPOINT", "true")],
            "ec2.eu-west-3.api.aws",
        ),
        (
            vec![(REGION, "cn-north-1")],
            "ec2.cn-north-1.amazonaws.com.cn",
        ),
        (
            vec![(REGION, "us-gov-west-1")],
            "ec2.us-gov-west-1.amazonaws.com",
        ),
    ];
    for (more, host) in cases {
        for variable in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
            let proxy = Played::new(vec![Reply::Body(403, String::new())]).await;
            let url = proxy.endpoint().replace("http://", "http://user:word@");
            let environment = [&KEYS[..], &more, &[(variable, url.as_str())]].concat();
            let lines = run(1, &environment).await;
            assert!(lines[0].starts_with("Unanswered: "), "{lines:?}");
            let request = proxy.seen().remove(0);
            assert_eq!(request.line, format!("CONNECT {host}:443 HTTP/1.1"));
            assert_eq!(request.headers["proxy-authorization"], "Basic dXNlcjp3b3Jk");
        }
    }
}

#[tokio::test]
async fn hosts_without_proxy_and_a_proxy_without_scheme() {
    let proxy = Played::new(vec![Reply::Body(403, String::new())]).await;
    let bare = proxy.endpoint().replace("http://", "");
    // Nothing listens there: only the connection through the proxy matters.
    let environment = [
        &KEYS[..],
        &[(ENDPOINT, "https://127.0.0.1:1"), ("HTTPS_PROXY", &bare)],
    ];
    let environment = environment.concat();
    let direct = [&environment[..], &[("NO_PROXY", "localhost,127.0.0.0/8")]].concat();
    let lines = run(1, &direct).await;
    assert!(lines[0].contains("refused"), "{lines:?}");
    assert!(proxy.seen().is_empty(), "{:?}", proxy.seen());
    run(1, &environment).await;
    assert_eq!(proxy.seen()[0].line, "CONNECT 127.0.0.1:1 HTTP/1.1");
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("bundle.pem");
    let text = text(&path, "no certificate");
    let gone = folder.path().join("gone.pem").to_str().unwrap().to_owned();
    let cases = [
        (("AWS_CA_BUNDLE", text.as_str()), "AWS_CA_BUNDLE: "),
        (("AWS_CA_BUNDLE", gone.as_str()), "AWS_CA_BUNDLE: "),
        (
            ("HTTPS_PROXY", "socks5://proxy:1080"),
            "proxy: HTTPS_PROXY: ",
        ),
        (
            (ENDPOINT, "ec2.example.com"),
            "endpoint: \"ec2.example.com\"",
        ),
        ((ENDPOINT, "https://"), "endpoint: \"https://\""),
    ];
    for (variable, named) in cases {
        let lines = run(1, &[&KEYS[..], &[variable]].concat()).await;
        assert!(lines[0].starts_with(named), "{lines:?}");
        assert!(lines[0].contains(", expected "), "{lines:?}");
    }
}
