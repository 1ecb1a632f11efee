package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"larder/internal/config"
	"larder/internal/errs"
)

// Access is how a client shows a daemon over TCP who it is, and whom it trusts. All of it are paths.
type Access struct {
	TokenFile string // its first token is sent with every call
	CA        string // PEM: authorities of the daemon's certificate; empty = those of the machine
	Cert, Key string // PEM: the client's own certificate, for daemons that ask for one
}

// over returns the credentials for a connection over TCP, and the options with the token.
func (a Access) over(d *dialer, target string, opts []grpc.DialOption) (credentials.TransportCredentials,
	[]grpc.DialOption, error) {
	secure := a.CA != "" || a.Cert != "" || a.Key != "" || !config.Loopback(target)
	if a.TokenFile != "" {
		if _, err := readTokens(a.TokenFile); err != nil {
			return nil, nil, err
		}
		opts = append([]grpc.DialOption{grpc.WithPerRPCCredentials(bearerFile{a.TokenFile, secure})}, opts...)
	}
	if !secure {
		return insecure.NewCredentials(), opts, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CA != "" {
		pool, err := Authorities(a.CA, "--tls-ca")
		if err != nil {
			return nil, nil, err
		}
		cfg.RootCAs = pool
	}
	switch {
	case (a.Cert == "") != (a.Key == ""):
		return nil, nil, errs.New(errs.Invalid, "--tls-cert", "give --tls-cert and --tls-key, or none of them",
			"a client's certificate needs its key, and only one of them is given")
	case a.Cert != "":
		cert, err := tls.LoadX509KeyPair(a.Cert, a.Key)
		if err != nil {
			return nil, nil, errs.New(errs.Invalid, "--tls-cert", "name a PEM certificate and its key", "read %s and %s",
				a.Cert, a.Key).Because(err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return noting{credentials.NewTLS(cfg), d}, opts, nil
}

// Authorities reads certificates of authorities from a PEM file; key is the setting that names it.
func Authorities(path, key string) (*x509.CertPool, error) {
	const hint = "name a PEM file with the certificate of the authority"
	b, err := os.ReadFile(path) //nolint:gosec // named by who runs the program
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, key, hint, "read the authority").Because(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, errs.New(errs.ConfigInvalid, key, hint, "%s holds no certificate", path)
	}
	return pool, nil
}

// noting remembers for the dialer what went wrong with TLS: gRPC does not report it.
type noting struct {
	credentials.TransportCredentials
	d *dialer
}

// ClientHandshake implements credentials.TransportCredentials.
func (n noting) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	conn, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, c)
	if err != nil {
		if ctx.Err() == nil {
			n.d.note(err)
		}
		return conn, info, err
	}
	n.d.mu.Lock()
	n.d.mu.met, n.d.mu.tls = true, nil
	n.d.mu.Unlock()
	return noted{conn, n.d}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (n noting) Clone() credentials.TransportCredentials {
	return noting{n.TransportCredentials.Clone(), n.d}
}

// noted is a connection whose peer may refuse our certificate after the handshake, as TLS 1.3 does.
type noted struct {
	net.Conn
	d *dialer
}

// Read implements net.Conn.
func (c noted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		c.d.note(err)
	}
	return n, err
}

func (d *dialer) note(err error) {
	d.mu.Lock()
	d.mu.tls = err
	d.mu.Unlock()
}

const hintCert = "show it a certificate of its authority (grpc.tls_client_ca) with --tls-cert and --tls-key"

// hintTLS says what helps against an error of TLS.
func hintTLS(err error) string {
	text := err.Error()
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "name the authority of its certificate with --tls-ca or LARDER_TLS_CA"
	case errors.As(err, new(x509.HostnameError)):
		return "ask it by a name or address that its certificate has"
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "it speaks no TLS: leave --tls-ca, --tls-cert and --tls-key (LARDER_TLS_…) out"
	case strings.Contains(text, "certificate required"), strings.Contains(text, "bad certificate"),
		strings.Contains(text, "unknown certificate"):
		return hintCert
	}
	return "larder doctor looks at the connection"
}
