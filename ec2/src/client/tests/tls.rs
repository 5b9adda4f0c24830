//! TLS with a certificate authority of one's own, as an endpoint in a private network has it.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

use super::environment::{ENDPOINT, KEYS, run, text};
use super::played::{Played, Reply, Request};

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn create(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// The file of its certificate.
    fn bundle(&self, folder: &TempDir, name: &str) -> String {
        text(&folder.path().join(name), &self.0.pem())
    }

    /// A server with a certificate for a name or an address.
    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate.der().clone()], key);
        TlsAcceptor::from(Arc::new(config.unwrap()))
    }
}

async fn ec2(acceptor: TlsAcceptor) -> Played {
    Played::over_tls(acceptor, |_: &Request| {
        Reply::ok("DescribeVpcs", "<vpcSet/>")
    })
    .await
}

#[tokio::test]
async fn an_endpoint_is_trusted_by_the_bundle_alone() {
    let (ours, other) = (Authority::create("ours"), Authority::create("other"));
    let folder = TempDir::new().unwrap();
    let [good, bad] = [(&ours, "good.pem"), (&other, "bad.pem")]
        .map(|(authority, name)| authority.bundle(&folder, name));
    let ec2 = ec2(ours.acceptor("127.0.0.1")).await;
    let environment = [&KEYS[..], &[(ENDPOINT, ec2.endpoint())]].concat();
    let with = |bundle| [&environment[..], &[("AWS_CA_BUNDLE", bundle)]].concat();
    assert_eq!(run(1, &with(good.as_str())).await, ["ok"]);
    assert_eq!(ec2.seen().len(), 1);
    // The system's certificates do not have it either.
    for environment in [environment.clone(), with(bad.as_str())] {
        let lines = run(1, &environment).await;
        let line = lines.concat();
        assert!(
            line.starts_with("Unanswered: DescribeVpcs: no answer: "),
            "{lines:?}"
        );
        assert!(
            line.contains("invalid peer certificate: UnknownIssuer"),
            "{lines:?}"
        );
    }
    assert_eq!(
        ec2.seen().len(),
        1,
        "nothing is sent to a server that is not trusted"
    );
}

#[tokio::test]
async fn a_certificate_for_another_name_is_named() {
    let ours = Authority::create("ours");
    let folder = TempDir::new().unwrap();
    let bundle = ours.bundle(&folder, "bundle.pem");
    let ec2 = ec2(ours.acceptor("ec2.example.com")).await;
    let more = [
        (ENDPOINT, ec2.endpoint()),
        ("AWS_CA_BUNDLE", bundle.as_str()),
    ];
    let lines = run(1, &[&KEYS[..], &more].concat()).await;
    let line = lines.concat();
    assert!(line.starts_with("Unanswered: "), "{lines:?}");
    assert!(line.contains("certificate not valid for name"), "{lines:?}");
    assert!(ec2.seen().is_empty());
}

/// The bundle counts for the calls that credentials need, too.
#[tokio::test]
async fn the_service_of_tokens_is_trusted_by_the_bundle_as_well() {
    let ours = Authority::create("ours");
    let folder = TempDir::new().unwrap();
    let bundle = ours.bundle(&folder, "bundle.pem");
    let ec2 = ec2(ours.acceptor("127.0.0.1")).await;
    let answer = r#"
        <AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
        <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKIDROLE</AccessKeyId>
        <SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>
        <Expiration>2099-01-31T12:00:00Z</Expiration></Credentials>
        </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"#;
    let sts = Played::over_tls(ours.acceptor("127.0.0.1"), move |_: &Request| {
        Reply::Body(200, answer.to_owned())
    });
    let sts = sts.await;
    let token = text(&folder.path().join("token"), "account-token");
    let environment = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/towpath"),
        ("AWS_ENDPOINT_URL_STS", sts.endpoint()),
        ("AWS_REGION", "eu-west-3"),
        ("AWS_CA_BUNDLE", bundle.as_str()),
        (ENDPOINT, ec2.endpoint()),
    ];
    assert_eq!(run(1, &environment).await, ["ok"]);
    assert_eq!((sts.seen().len(), ec2.seen().len()), (1, 1));
}
