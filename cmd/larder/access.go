package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/rpc"
	larderv1 "larder/proto/larder/v1"
)

// Environment variables of clients, as LARDER_SOCKET is.
const (
	envTokenFile = "LARDER_TOKEN_FILE" //nolint:gosec // a name
	envTLSCA     = "LARDER_TLS_CA"
	envTLSCert   = "LARDER_TLS_CERT"
	envTLSKey    = "LARDER_TLS_KEY"
)

// registerAccess adds the flags of TCP. Clients show and trust what they name; a daemon asks for it.
func registerAccess(root *cobra.Command, a *rpc.Access) {
	f := root.PersistentFlags()
	f.StringVar(&a.TokenFile, "token-file", "", "file with the token of gRPC over TCP (default: LARDER_TOKEN_FILE for "+
		"a client, else grpc.token_file of the configuration; serve: that alone)")
	f.StringVar(&a.CA, "tls-ca", "", "PEM authorities of the other side's certificate over TCP (default: "+
		"LARDER_TLS_CA, else the machine's; serve: grpc.tls_client_ca)")
	f.StringVar(&a.Cert, "tls-cert", "",
		"PEM certificate of this side over TCP (default: LARDER_TLS_CERT; serve: grpc.tls_cert)")
	f.StringVar(&a.Key, "tls-key", "", "PEM key of that certificate (default: LARDER_TLS_KEY; serve: grpc.tls_key)")
}

// accessKeys says what the flags of TCP mean to a daemon.
func accessKeys(a rpc.Access, keys map[string]string) {
	for key, value := range map[string]string{
		"grpc.token_file": a.TokenFile, "grpc.tls_client_ca": a.CA, "grpc.tls_cert": a.Cert, "grpc.tls_key": a.Key,
	} {
		if value != "" {
			keys[key] = value
		}
	}
}

// dial connects to the daemon.
func (g *globals) dial(ctx context.Context) (larderv1.LarderServiceClient, io.Closer, error) {
	target := g.target()
	if strings.Contains(target, "/") || strings.HasPrefix(target, "unix:") {
		if g.tcp != (rpc.Access{}) && !g.configured {
			return nil, nil, usagef("leave them out, or name the daemon's gRPC address, as in --socket 127.0.0.1:7070",
				"--token-file, --tls-ca, --tls-cert and --tls-key are for TCP, and %s is a Unix socket: there the kernel says "+
					"who calls", target)
		}
		return rpc.Dial(ctx, target)
	}
	access, err := g.access()
	if err != nil {
		return nil, nil, err
	}
	return rpc.DialWith(ctx, target, access)
}

// access is what this client shows and trusts over TCP: flags, else the environment, else the token of the
// configuration.
func (g *globals) access() (rpc.Access, error) {
	a := g.tcp
	for _, x := range []struct {
		at   *string
		name string
	}{{&a.TokenFile, envTokenFile}, {&a.CA, envTLSCA}, {&a.Cert, envTLSCert}, {&a.Key, envTLSKey},
		{&a.TokenFile, config.EnvPrefix + "GRPC__TOKEN_FILE"}} {
		if *x.at == "" {
			*x.at = os.Getenv(x.name)
		}
	}
	if file := os.Getenv("LARDER_CONFIG"); a.TokenFile == "" && file != "" {
		cfg, err := config.Load(file, os.Environ(), nil)
		if err != nil {
			return a, err
		}
		a.TokenFile = cfg.GRPC.TokenFile
	}
	return a, nil
}

// userName is the name of a user on this machine, else its number.
func userName(uid uint32) string {
	n := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(n); err == nil && u.Username != "" {
		return printable(u.Username)
	}
	return "uid " + n
}

// checkOpen lists the addresses of the daemon and who may use each.
func checkOpen(ctx context.Context, g *globals) []finding {
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, closer, err := g.dial(dial)
	if err != nil {
		return nil // checkSocket reports that
	}
	defer closer.Close()
	r, err := client.GetStats(dial, &larderv1.GetStatsRequest{})
	if err != nil {
		return nil
	}
	var out []finding
	for _, l := range r.GetStats().GetListeners() {
		f := finding{Check: "open", Status: "ok", Detail: fmt.Sprintf("%s serves %s to %s", l.GetAddress(), l.GetServes(),
			l.GetAdmits())}
		if l.GetRemote() && !l.GetGuarded() {
			f.Status, f.Fix = "warn", "listen on 127.0.0.1, or let only who may know reach it (a firewall, a proxy with a "+
				"password)"
		}
		out = append(out, f)
	}
	return out
}
