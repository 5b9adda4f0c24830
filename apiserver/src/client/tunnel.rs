//! Client whose connections go through a proxy.

use http_body_util::BodyExt as _;
use hyper::rt::{Read, Write};
use hyper::{Request, Response, Uri};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt as _, DynBody};
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

use super::proxy::Proxy;

/// Service below a client, as `ClientBuilder` makes it of a configuration.
pub(super) type Stack = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// Begins a client, which goes through a proxy where there is one.
///
/// # Errors
/// When the configuration's credentials or certificates cannot be used.
pub(crate) fn builder(config: Config, proxy: Option<Proxy>) -> kube::Result<ClientBuilder<Stack>> {
    let Some(proxy) = proxy else {
        return ClientBuilder::try_from(config);
    };
    let mut connector = HttpConnector::new();
    // A proxy is spoken to in plain text, whatever goes through it.
    connector.enforce_http(false);
    match proxy {
        Proxy::Http(uri) => {
            let login = login(&uri, &config);
            let tunnel = Tunnel::new(uri, connector);
            match login.as_ref().and_then(Intercept::basic_auth) {
                Some(auth) => through(tunnel.with_auth(auth.clone()), &config),
                None => through(tunnel, &config),
            }
        }
        Proxy::Socks(uri) => {
            let login = login(&uri, &config);
            let socks = SocksV5::new(uri, connector);
            match login.as_ref().and_then(Intercept::raw_auth) {
                Some((user, password)) => {
                    through(socks.with_auth(user.into(), password.into()), &config)
                }
                None => through(socks, &config),
            }
        }
    }
}

/// Reads user and password of a proxy's URL.
fn login(proxy: &Uri, config: &Config) -> Option<Intercept> {
    let matcher = Matcher::builder().all(proxy.to_string()).build();
    matcher.intercept(&config.cluster_url)
}

fn through<C>(connector: C, config: &Config) -> kube::Result<ClientBuilder<Stack>>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let tls = config.rustls_https_connector_with_connector(connector)?;
    let mut timed = TimeoutConnector::new(tls);
    timed.set_connect_timeout(config.connect_timeout);
    timed.set_read_timeout(config.read_timeout);
    timed.set_write_timeout(config.write_timeout);
    let client = Builder::new(TokioExecutor::new()).build::<_, Body>(timed);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client)
        .map_response(|response| {
            response.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>)
        });
    let namespace = config.default_namespace.clone();
    Ok(ClientBuilder::new(service.boxed(), namespace))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use kube::Client;

    use super::*;

    /// Answers as a proxy, and then as the server beyond it; returns the requests of both.
    fn played(listener: &TcpListener) -> [String; 2] {
        let (mut stream, _) = listener.accept().unwrap();
        let version = r#"{"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "",
            "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}"#;
        let length = version.len();
        let answers = [
            "HTTP/1.1 200 Connected\r\n\r\n".to_owned(),
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{version}"
            ),
        ];
        answers.map(|answer| {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(head).unwrap()
        })
    }

    #[tokio::test]
    async fn requests_go_through_the_proxy_with_its_login_and_the_server_s_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = thread::spawn(move || played(&listener));
        let mut config = Config::new(Uri::from_static("http://api.example:6443"));
        config.auth_info.token = Some("t".to_owned().into());
        let uri = format!("http://me:secret@127.0.0.1:{port}");
        let proxy_config = Some(Proxy::Http(uri.parse().unwrap()));
        let client: Client = builder(config, proxy_config).unwrap().build();
        assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
        let [connect, get] = proxy.join().unwrap();
        assert!(
            connect.starts_with("CONNECT api.example:6443 "),
            "{connect}"
        );
        assert!(
            connect.contains("Proxy-Authorization: Basic bWU6c2VjcmV0"),
            "{connect}"
        );
        assert!(get.starts_with("GET /version "), "{get}");
        assert!(get.contains("authorization: Bearer t"), "{get}");
        assert!(!get.contains("bWU6c2VjcmV0"), "{get}");
    }
}
