package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"larder/internal/shm"
)

// PeerCreds are the credentials of a Unix socket: the kernel says who calls, and handlers find it by shm.PeerFrom.
func PeerCreds() credentials.TransportCredentials { return peerCreds{} }

type peerCreds struct{}

// peerInfo is who is at the other end.
type peerInfo struct{ shm.Peer }

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "unix" }

// ServerHandshake implements credentials.TransportCredentials.
func (peerCreds) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("a %T is no Unix socket", c)
	}
	p, err := shm.PeerOf(u)
	if err != nil {
		return nil, nil, err
	}
	return c, peerInfo{p}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (peerCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info implements credentials.TransportCredentials.
func (peerCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone implements credentials.TransportCredentials.
func (p peerCreds) Clone() credentials.TransportCredentials { return p }

// OverrideServerName implements credentials.TransportCredentials.
func (peerCreds) OverrideServerName(string) error { return nil }

// known adds to a context whose call it is, where the kernel has said it.
func known(ctx context.Context) context.Context {
	if p, ok := peer.FromContext(ctx); ok {
		if i, ok := p.AuthInfo.(peerInfo); ok {
			return shm.WithPeer(ctx, i.Peer)
		}
	}
	return ctx
}

func knownUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	return next(known(ctx), req)
}

func knownStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, knownServerStream{ss, known(ss.Context())})
}

type knownServerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s knownServerStream) Context() context.Context { return s.ctx }
