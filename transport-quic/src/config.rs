//! The configurations of TLS, QUIC and the socket of an endpoint.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::ServerName;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{ALPN, QuicOptions, Tls};

/// The maximum number of connections that wait to be accepted.
const MAX_INCOMING: usize = 1_024;

/// The requested size of the socket buffers in bytes, for each direction.
const SOCKET_BUFFER_LEN: usize = 4 << 20;

/// The client side of an endpoint.
#[derive(Clone)]
pub(crate) struct ClientSide {
    pub(crate) config: quinn::ClientConfig,
    pub(crate) server_name: Option<ServerName<'static>>,
}

/// The configuration for connecting (PROTOCOL QUIC-1, QUIC-2 and QUIC-3).
pub(crate) fn client_side(tls: &Tls, settings: &QuicOptions) -> io::Result<Option<ClientSide>> {
    let Some(client) = &tls.client else {
        return Ok(None);
    };
    let server_name = tls.server_name.clone();
    let mut tls = rustls::ClientConfig::clone(client);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_early_data = false;
    let tls = Arc::new(tls);
    // quinn would panic on a configuration that rustls refuses here.
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let version = rustls::quic::Version::V1;
    rustls::quic::ClientConnection::new(Arc::clone(&tls), version, name, Vec::new())
        .map_err(unsuitable)?;
    let tls = QuicClientConfig::try_from(tls).map_err(unsuitable)?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(settings.to_transport_config());
    Ok(Some(ClientSide {
        config,
        server_name,
    }))
}

/// The configuration for listening (PROTOCOL QUIC-1, QUIC-2 and QUIC-3).
pub(crate) fn server_config(
    tls: &Tls,
    settings: &QuicOptions,
) -> io::Result<Option<quinn::ServerConfig>> {
    let Some(tls) = &tls.server else {
        return Ok(None);
    };
    let mut tls = rustls::ServerConfig::clone(tls);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = 0;
    let tls = Arc::new(tls);
    // quinn would panic on a configuration that rustls refuses here.
    let version = rustls::quic::Version::V1;
    rustls::quic::ServerConnection::new(Arc::clone(&tls), version, Vec::new())
        .map_err(unsuitable)?;
    let tls = QuicServerConfig::try_from(tls).map_err(unsuitable)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config
        .transport_config(settings.to_transport_config())
        // PROTOCOL QUIC-6
        .migration(false)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(64 << 10)
        .incoming_buffer_size_total(16 << 20);
    Ok(Some(config))
}

fn unsuitable(error: impl core::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

pub(crate) fn bind_socket(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // Systems without dual-stack sockets bind IPv6 only.
        let _ = socket.set_only_v6(false);
    }
    // The system may grant less.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_LEN);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_LEN);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Binds a socket to every interface, of IPv6 and IPv4 where the system has both.
pub(crate) fn bind_every_interface(port: u16) -> io::Result<std::net::UdpSocket> {
    match bind_socket((Ipv6Addr::UNSPECIFIED, port).into()) {
        Ok(socket) => Ok(socket),
        // The port is in use, for either family, or forbidden.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
            ) =>
        {
            Err(error)
        }
        // This host has no IPv6.
        Err(_) => bind_socket((Ipv4Addr::UNSPECIFIED, port).into()),
    }
}

/// Converts an IPv4-mapped address of a dual-stack socket to IPv4.
pub(crate) fn canonical(socket: SocketAddr) -> SocketAddr {
    match socket.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, socket.port()),
        IpAddr::V6(_) => socket,
    }
}
