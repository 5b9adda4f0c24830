//! Each listing is read in pages, and each of its objects becomes a value.

use std::collections::BTreeSet;

use cloud::call::query::{Items, Page, Query, What};
use cloud::elastic::{Association, Elastic};
use cloud::groups::Group;
use cloud::inventory::Scope;
use cloud::object::subnet::{RouteTable, Subnet};
use cloud::{Failure, Instance, InstanceState, Tags, TypeInfo, Vpc, VpcId};

use super::played::{Form, Played, Reply};
use super::values::{ATTACHED, attached};
use crate::Ec2 as _;

fn query(what: What) -> Query {
    Query {
        what,
        vpcs: BTreeSet::new(),
        page: None,
    }
}

/// Reads the only page of a listing.
async fn read(what: What, content: &str) -> (Items, Form) {
    let played = Played::new(vec![Reply::ok(what.action().name(), content)]).await;
    let page = played.client().read(&query(what)).await.unwrap();
    assert_eq!(page.next, None);
    (page.items, played.requests().remove(0))
}

/// Reads all pages of a listing.
async fn read_all(played: &Played, mut query: Query) -> Result<(Items, usize), Failure> {
    let client = played.client();
    let (mut items, mut pages) = (query.what.items(), 0);
    loop {
        let page: Page = client.read(&query).await?;
        assert!(items.extend(page.items));
        pages += 1;
        query.page = page.next;
        if query.page.is_none() {
            return Ok((items, pages));
        }
    }
}

fn tags(key: &str, value: &str) -> Tags {
    Tags::from([(key.to_owned(), value.to_owned())])
}

#[tokio::test]
async fn enis_have_their_blocks_groups_and_attachment() {
    let content = format!("<networkInterfaceSet>{ATTACHED}</networkInterfaceSet>");
    let (items, form) = read(What::Enis(Scope::All), &content).await;
    assert_eq!(items, Items::Enis(vec![attached()]));
    assert_eq!(form["MaxResults"], "500");
    assert!(!form.contains_key("Filter.1.Name"), "{form:?}");
}

#[tokio::test]
async fn a_detached_eni_is_loose_and_one_of_another_state_is_not() {
    for (state, is_loose) in [("detached", true), ("detaching", false), ("busy", false)] {
        let eni = ATTACHED.replace("<status>attached<", &format!("<status>{state}<"));
        let content = format!("<networkInterfaceSet>{eni}</networkInterfaceSet>");
        let (items, _) = read(What::Enis(Scope::All), &content).await;
        let Items::Enis(enis) = items else {
            panic!("{items:?}");
        };
        assert_eq!(enis[0].is_loose(), is_loose, "{state}");
    }
}

#[tokio::test]
async fn a_vpc_has_the_cidrs_that_are_associated() {
    let content = "<vpcSet><item><vpcId>vpc-1</vpcId><cidrBlock>10.0.0.0/16</cidrBlock>
        <cidrBlockAssociationSet>
        <item><cidrBlock>10.0.0.0/16</cidrBlock>
        <cidrBlockState><state>associated</state></cidrBlockState></item>
        <item><cidrBlock>100.64.0.0/16</cidrBlock>
        <cidrBlockState><state>associated</state></cidrBlockState></item>
        <item><cidrBlock>10.9.0.0/16</cidrBlock>
        <cidrBlockState><state>disassociated</state></cidrBlockState></item>
        </cidrBlockAssociationSet>
        <ipv6CidrBlockAssociationSet><item><ipv6CidrBlock>2001:db8::/56</ipv6CidrBlock>
        <ipv6CidrBlockState><state>associated</state></ipv6CidrBlockState></item>
        </ipv6CidrBlockAssociationSet></item></vpcSet>";
    let (items, _) = read(What::Vpcs, content).await;
    let vpc = Vpc {
        id: "vpc-1".into(),
        primary: "10.0.0.0/16".parse().unwrap(),
        others: ["100.64.0.0/16", "2001:db8::/56"]
            .map(|it| it.parse().unwrap())
            .into(),
    };
    assert_eq!(items, Items::Vpcs(vec![vpc]));
}

#[tokio::test]
async fn subnets_of_both_families_and_of_ipv6_alone() {
    let content = "<subnetSet><item><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId>
        <availabilityZone>eu-central-1a</availabilityZone><cidrBlock>10.0.1.0/24</cidrBlock>
        <availableIpAddressCount>251</availableIpAddressCount>
        <tagSet><item><key>role</key><value>pods</value></item></tagSet></item>
        <item><subnetId>subnet-2</subnetId><vpcId>vpc-1</vpcId>
        <availabilityZone>eu-central-1a</availabilityZone>
        <availableIpAddressCount>0</availableIpAddressCount><ipv6Native>true</ipv6Native>
        <ipv6CidrBlockAssociationSet>
        <item><ipv6CidrBlock>2001:db8:0:9::/64</ipv6CidrBlock>
        <ipv6CidrBlockState><state>disassociated</state></ipv6CidrBlockState></item>
        <item><ipv6CidrBlock>2001:db8:0:1::/64</ipv6CidrBlock>
        <ipv6CidrBlockState><state>associated</state></ipv6CidrBlockState></item>
        </ipv6CidrBlockAssociationSet></item></subnetSet>";
    let (items, _) = read(What::Subnets, content).await;
    let first = Subnet {
        id: "subnet-1".into(),
        vpc: "vpc-1".into(),
        zone: "eu-central-1a".to_owned(),
        ipv4: Some("10.0.1.0/24".parse().unwrap()),
        ipv6: None,
        free: 251,
        tags: tags("role", "pods"),
        route_table: None,
    };
    let second = Subnet {
        id: "subnet-2".into(),
        ipv4: None,
        ipv6: Some("2001:db8:0:1::/64".parse().unwrap()),
        free: 0,
        tags: Tags::new(),
        ..first.clone()
    };
    assert_eq!(items, Items::Subnets(vec![first, second]));
}

#[tokio::test]
async fn route_tables_and_security_groups() {
    let content = "<routeTableSet><item><routeTableId>rtb-1</routeTableId><vpcId>vpc-1</vpcId>
        <associationSet><item><main>true</main>
        <associationState><state>associated</state></associationState></item>
        <item><subnetId>subnet-1</subnetId><main>false</main>
        <associationState><state>associated</state></associationState></item>
        <item><subnetId>subnet-2</subnetId><main>false</main>
        <associationState><state>failed</state></associationState></item>
        </associationSet></item></routeTableSet>";
    let (items, form) = read(What::RouteTables, content).await;
    let table = RouteTable {
        id: "rtb-1".into(),
        vpc: "vpc-1".into(),
        is_main: true,
        subnets: ["subnet-1".into()].into(),
    };
    assert_eq!(items, Items::RouteTables(vec![table]));
    assert_eq!(form["MaxResults"], "100");
    let content = "<securityGroupInfo><item><groupId>sg-1</groupId><vpcId>vpc-1</vpcId>
        <groupName>nodes</groupName><tagSet><item><key>role</key><value>pods</value></item>
        </tagSet></item></securityGroupInfo>";
    let (items, _) = read(What::Groups, content).await;
    let group = Group {
        id: "sg-1".into(),
        vpc: "vpc-1".into(),
        tags: tags("role", "pods"),
    };
    assert_eq!(items, Items::Groups(vec![group]));
}

#[tokio::test]
async fn instances_and_their_types() {
    let content = "<reservationSet><item><reservationId>r-1</reservationId><instancesSet><item>
        <instanceId>i-1</instanceId><instanceType>m5.large</instanceType>
        <instanceState><code>48</code><name>terminated</name></instanceState>
        <placement><availabilityZone>eu-central-1a</availabilityZone></placement>
        </item></instancesSet></item></reservationSet>";
    let (items, form) = read(What::Instances(["i-1".into()].into()), content).await;
    let instance = Instance {
        id: "i-1".into(),
        kind: "m5.large".to_owned(),
        state: InstanceState::Terminated,
        vpc: None,
        subnet: None,
        zone: "eu-central-1a".to_owned(),
        tags: Tags::new(),
    };
    assert_eq!(items, Items::Instances(vec![instance]));
    assert_eq!(form["Filter.1.Name"], "instance-id");
    assert_eq!(form["Filter.1.Value.1"], "i-1");
    let content = "<instanceTypeSet><item><instanceType>p5.48xlarge</instanceType>
        <bareMetal>false</bareMetal><hypervisor>nitro</hypervisor><networkInfo>
        <maximumNetworkInterfaces>64</maximumNetworkInterfaces>
        <ipv4AddressesPerInterface>50</ipv4AddressesPerInterface>
        <ipv6AddressesPerInterface>50</ipv6AddressesPerInterface><networkCards>
        <item><networkCardIndex>0</networkCardIndex>
        <maximumNetworkInterfaces>2</maximumNetworkInterfaces></item>
        <item><networkCardIndex>1</networkCardIndex>
        <maximumNetworkInterfaces>1</maximumNetworkInterfaces></item>
        </networkCards></networkInfo></item></instanceTypeSet>";
    let (items, _) = read(What::Types(["p5.48xlarge".to_owned()].into()), content).await;
    let info = TypeInfo {
        name: "p5.48xlarge".to_owned(),
        enis: 64,
        cards: [(0, 2), (1, 1)].into(),
        ipv4_per_eni: 50,
        ipv6_per_eni: 50,
        hypervisor: "nitro".to_owned(),
        bare_metal: false,
    };
    assert_eq!(items, Items::Types(vec![info]));
}

#[tokio::test]
async fn loose_enis_of_some_vpcs() {
    let played = Played::new(vec![Reply::ok("DescribeNetworkInterfaces", "")]).await;
    let query = Query {
        vpcs: ["vpc-1", "vpc-2"].map(VpcId::from).into(),
        ..query(What::Enis(Scope::Loose))
    };
    played.client().read(&query).await.unwrap();
    let form = played.requests().remove(0);
    assert_eq!(form["Filter.1.Name"], "status");
    assert_eq!(form["Filter.1.Value.1"], "available");
    assert_eq!(form["Filter.2.Name"], "vpc-id");
    assert_eq!(form["Filter.2.Value.2"], "vpc-2");
}

#[tokio::test]
async fn all_pages_of_all_parts_are_read_and_no_call_names_ids_with_a_size() {
    let ids = (0..450).map(|it| format!("i-{it:03}").as_str().into());
    let what = What::Enis(Scope::Instances(ids.collect()));
    let page = |token: &str| {
        let next = format!("<networkInterfaceSet>{ATTACHED}</networkInterfaceSet>{token}");
        Reply::ok("DescribeNetworkInterfaces", &next)
    };
    let more = "<nextToken>a:b</nextToken>";
    let played = Played::new(vec![page(more), page(""), page(""), page("<nextToken/>")]).await;
    let (items, pages) = read_all(&played, query(what)).await.unwrap();
    assert_eq!(items, Items::Enis(vec![attached(); 4]));
    assert_eq!(pages, 4);
    let requests = played.requests();
    let values = |form: &Form| {
        let values = form.keys().filter(|it| it.starts_with("Filter.1.Value."));
        (values.count(), form["Filter.1.Value.1"].clone())
    };
    let parts: Vec<_> = requests.iter().map(values).collect();
    let expected = [
        (200, "i-000"),
        (200, "i-000"),
        (200, "i-200"),
        (50, "i-400"),
    ];
    assert_eq!(parts, expected.map(|(n, id)| (n, id.to_owned())));
    let tokens: Vec<_> = requests.iter().map(|it| it.get("NextToken")).collect();
    assert_eq!(tokens, [None, Some(&"a:b".to_owned()), None, None]);
    assert!(requests.iter().all(|it| it.contains_key("MaxResults")));
    let with_ids = requests
        .iter()
        .filter(|it| it.contains_key("NetworkInterfaceId.1"));
    assert_eq!(with_ids.count(), 0);
}

#[tokio::test]
async fn elastic_addresses_come_in_one_answer_with_what_has_them() {
    let content = "<addressesSet>
        <item><publicIp>198.51.100.1</publicIp><allocationId>eipalloc-1</allocationId>
        <domain>vpc</domain><instanceId>i-1</instanceId><associationId>eipassoc-1</associationId>
        <networkInterfaceId>eni-1</networkInterfaceId>
        <privateIpAddress>10.0.0.4</privateIpAddress></item>
        <item><publicIp>198.51.100.2</publicIp><allocationId>eipalloc-2</allocationId>
        <domain>vpc</domain><instanceId/><associationId/>
        <tagSet><item><key>role</key><value>egress</value></item></tagSet></item>
        <item><publicIp>198.51.100.3</publicIp><domain>standard</domain></item></addressesSet>";
    let (items, form) = read(What::Addresses, content).await;
    let held = Elastic {
        id: "eipalloc-1".into(),
        address: "198.51.100.1".parse().unwrap(),
        association: Some(Association {
            eni: Some("eni-1".into()),
            private: "10.0.0.4".parse().ok(),
        }),
        tags: Tags::new(),
    };
    let free = Elastic {
        id: "eipalloc-2".into(),
        address: "198.51.100.2".parse().unwrap(),
        association: None,
        tags: tags("role", "egress"),
    };
    assert_eq!(items, Items::Addresses(vec![held, free]));
    for absent in ["MaxResults", "NextToken", "Filter.1.Name"] {
        assert!(!form.contains_key(absent), "{form:?}");
    }
}

#[tokio::test]
async fn a_query_that_names_nothing_makes_no_call() {
    let played = Played::new(Vec::new()).await;
    let client = played.client();
    let queries = [
        What::Enis(Scope::Ids(BTreeSet::new())),
        What::Enis(Scope::Instances(BTreeSet::new())),
        What::Instances(BTreeSet::new()),
        What::Types(BTreeSet::new()),
    ];
    for what in queries {
        let page = client.read(&query(what.clone())).await.unwrap();
        assert_eq!((page.items, page.next), (what.items(), None));
    }
    assert!(played.requests().is_empty());
}

#[tokio::test]
async fn pages_that_never_end_are_a_failure() {
    let again = || Reply::ok("DescribeSubnets", "<nextToken>again</nextToken>");
    let played = Played::new(vec![again(), again(), again()]).await;
    let failure = read_all(&played, query(What::Subnets)).await.unwrap_err();
    assert!(failure.message.contains("names its own page"), "{failure}");
    assert_eq!(played.requests().len(), 2);
}

#[tokio::test]
async fn a_token_of_another_kind_is_named_and_not_sent() {
    let played = Played::new(Vec::new()).await;
    let query = Query {
        page: Some("later".to_owned()),
        ..query(What::Subnets)
    };
    let failure = played.client().read(&query).await.unwrap_err();
    assert!(failure.message.contains("\"later\""), "{failure}");
    assert!(played.requests().is_empty());
}
