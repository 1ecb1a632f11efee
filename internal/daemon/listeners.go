package daemon

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/rpc"
	larderv1 "larder/proto/larder/v1"
)

// tcpAccess says who may call over TCP: by certificate, by token, or both. Nil creds mean no TLS.
type tcpAccess struct {
	creds  credentials.TransportCredentials
	tokens *rpc.Tokens
}

// openAccess reads the token file and the certificates of a configuration that was validated.
func openAccess(g config.GRPC, log *slog.Logger) (a tcpAccess, err error) {
	if g.TokenFile != "" {
		if a.tokens, err = rpc.OpenTokens(g.TokenFile, log); err != nil {
			return tcpAccess{}, err
		}
	}
	if g.TLSCert == "" {
		return a, nil // validated: loopback only, with a token
	}
	cert, err := tls.LoadX509KeyPair(g.TLSCert, g.TLSKey)
	if err != nil {
		return tcpAccess{}, errs.Wrap(err, errs.ConfigInvalid, "grpc.tls_cert", "name a PEM certificate and its key",
			"read %s and %s", g.TLSCert, g.TLSKey)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if g.TLSClientCA != "" {
		if c.ClientCAs, err = rpc.Authorities(g.TLSClientCA, "grpc.tls_client_ca"); err != nil {
			return tcpAccess{}, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	a.creds = credentials.NewTLS(c)
	return a, nil
}

// overflowID is the number by which the kernel names every user and group that is unknown in this namespace.
const overflowID = 65534

// socketGroup returns the number of a group that is named or numbered; 0 for an empty name. The groups 0 and
// overflowID are refused: they would admit callers that the operator did not choose.
func socketGroup(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	text := name
	if g, err := user.LookupGroup(name); err == nil {
		text = g.Gid
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err == nil && (n == 0 || n == overflowID) {
		return 0, errs.New(errs.ConfigInvalid, "socket_group", "make a group for the users of the daemon",
			"group %d is that of root, or the overflow group", n)
	}
	if err != nil {
		return 0, errs.New(errs.ConfigInvalid, "socket_group", "getent group lists the groups; a number works too",
			"there is no group %q on this machine", name)
	}
	return int(n), nil
}

// describeListeners lists the addresses of the daemon and who may use each, for people.
func (d *Daemon) describeListeners() []*larderv1.Listener {
	cfg := d.config.now
	unix := &larderv1.Listener{
		Address: d.Socket(), Serves: "sessions and gRPC", Admits: fmt.Sprintf("uid %d and root", os.Getuid()), Guarded: true,
	}
	if g := cfg.SocketGroup; g != "" {
		unix.Admits = fmt.Sprintf("uid %d, root and group %s", os.Getuid(), g)
	}
	list := []*larderv1.Listener{unix}
	if addr := d.GRPC(); addr != "" {
		list = append(list, &larderv1.Listener{
			Address: addr, Serves: "gRPC", Admits: admitted(cfg.GRPC), Remote: !config.Loopback(addr), Guarded: true,
		})
	}
	if addr := d.HTTP(); addr != "" {
		remote := !config.Loopback(addr)
		who := "every user of this machine"
		if remote {
			who = "everybody whose machine reaches it"
		}
		list = append(list, &larderv1.Listener{Address: addr, Serves: "HTTP", Admits: who +
			"; read-only; shows names of jobs and datasets", Remote: remote})
	}
	return list
}

// admitted says in words who may call over TCP.
func admitted(g config.GRPC) string {
	var with []string
	if g.TLSClientCA != "" {
		with = append(with, "a certificate of grpc.tls_client_ca")
	}
	if g.TokenFile != "" {
		with = append(with, "the token")
	}
	how := "by TLS"
	if g.TLSCert == "" {
		how = "in the clear"
	}
	return "callers with " + strings.Join(with, " and ") + ", " + how
}
