//! Objects of EC2 as XML, and the same ones as values.

use cloud::{AttachState, Attachment, Eni, InterfaceKind, Placement, Tags};

/// The answer to a creation.
pub(super) const CREATED: &str = "<networkInterface>
    <networkInterfaceId>eni-1</networkInterfaceId><subnetId>subnet-1</subnetId>
    <vpcId>vpc-1</vpcId><availabilityZone>eu-central-1a</availabilityZone>
    <description>towpath</description><ownerId>111122223333</ownerId>
    <requesterManaged>false</requesterManaged><status>pending</status>
    <macAddress>02:74:b0:8b:ac:1f</macAddress><privateIpAddress>10.0.0.5</privateIpAddress>
    <sourceDestCheck>true</sourceDestCheck>
    <groupSet><item><groupId>sg-1</groupId><groupName>nodes</groupName></item></groupSet>
    <tagSet><item><key>ipam.towpath.dev/cluster</key><value>blue</value></item></tagSet>
    <privateIpAddressesSet><item><privateIpAddress>10.0.0.5</privateIpAddress>
    <primary>true</primary></item></privateIpAddressesSet>
    <ipv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item></ipv4PrefixSet>
    <ipv6AddressesSet/>
    <ipv6PrefixSet><item><ipv6Prefix>2001:db8:0:1:1::/80</ipv6Prefix></item></ipv6PrefixSet>
    <interfaceType>interface</interfaceType></networkInterface>";

/// The ENI of [`CREATED`].
pub(super) fn created() -> Eni {
    Eni {
        id: "eni-1".into(),
        placement: Placement {
            vpc: "vpc-1".into(),
            subnet: "subnet-1".into(),
            zone: "eu-central-1a".to_owned(),
        },
        mac: [0x02, 0x74, 0xb0, 0x8b, 0xac, 0x1f],
        kind: InterfaceKind::Standard,
        description: "towpath".to_owned(),
        own: Some("10.0.0.5".parse().unwrap()),
        public: None,
        blocks: ["10.0.0.16/28", "2001:db8:0:1:1::/80"]
            .map(|it| it.parse().unwrap())
            .into(),
        groups: ["sg-1".into()].into(),
        tags: Tags::from([("ipam.towpath.dev/cluster".to_owned(), "blue".to_owned())]),
        is_pending: true,
        attachment: None,
    }
}

/// An ENI in a listing: attached, with secondary and public addresses and one tag without value.
pub(super) const ATTACHED: &str = "<item>
    <networkInterfaceId>eni-2</networkInterfaceId><subnetId>subnet-1</subnetId>
    <vpcId>vpc-1</vpcId><availabilityZone>eu-central-1a</availabilityZone>
    <description/><status>in-use</status><macAddress>02:74:B0:8B:AC:20</macAddress>
    <privateIpAddress>10.0.0.6</privateIpAddress>
    <association><publicIp>198.51.100.7</publicIp></association>
    <groupSet><item><groupId>sg-2</groupId></item><item><groupId>sg-1</groupId></item></groupSet>
    <tagSet><item><key>empty</key><value/></item></tagSet>
    <privateIpAddressesSet><item><privateIpAddress>10.0.0.6</privateIpAddress>
    <primary>true</primary></item><item><privateIpAddress>10.0.0.7</privateIpAddress>
    <primary>false</primary></item></privateIpAddressesSet>
    <ipv6AddressesSet><item><ipv6Address>2001:db8::7</ipv6Address></item></ipv6AddressesSet>
    <interfaceType>efa</interfaceType>
    <attachment><attachmentId>eni-attach-2</attachmentId><instanceId>i-2</instanceId>
    <instanceOwnerId>111122223333</instanceOwnerId><deviceIndex>1</deviceIndex>
    <networkCardIndex>0</networkCardIndex><status>attached</status>
    <attachTime>2026-01-31T12:00:00.000Z</attachTime>
    <deleteOnTermination>true</deleteOnTermination></attachment></item>";

/// The ENI of [`ATTACHED`].
pub(super) fn attached() -> Eni {
    Eni {
        id: "eni-2".into(),
        mac: [0x02, 0x74, 0xb0, 0x8b, 0xac, 0x20],
        description: String::new(),
        own: Some("10.0.0.6".parse().unwrap()),
        public: Some("198.51.100.7".parse().unwrap()),
        blocks: ["10.0.0.7/32", "2001:db8::7/128"]
            .map(|it| it.parse().unwrap())
            .into(),
        groups: ["sg-1".into(), "sg-2".into()].into(),
        tags: Tags::from([("empty".to_owned(), String::new())]),
        is_pending: false,
        attachment: Some(Attachment {
            id: "eni-attach-2".into(),
            instance: Some("i-2".into()),
            index: 1,
            card: 0,
            state: AttachState::Attached,
            delete_on_termination: true,
        }),
        ..created()
    }
}
