package daemon

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/rpc"
	"larder/internal/session"
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
		return tcpAccess{}, errs.New(errs.ConfigInvalid, "grpc.tls_cert", "name a PEM certificate and its key",
			"read %s and %s", g.TLSCert, g.TLSKey).Because(err)
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

// doors are the addresses that clients come to.
type doors struct {
	unix   *session.Listener
	tcp    net.Listener // of gRPC; nil = it is not served over TCP
	access tcpAccess    // over TCP
	shown  atomic.Pointer[[]*larderv1.Listener]
}

// open opens the Unix socket for this user and a group, and the TCP listener of gRPC where there is one.
func (o *doors) open(cfg *config.Config, group int, log *slog.Logger) (err error) {
	if o.unix, err = session.ListenGroup(cmp.Or(cfg.Socket, session.DefaultSocket()), group); err != nil {
		return err
	}
	if cfg.GRPC.Listen == "" {
		return nil
	}
	if o.access, err = openAccess(cfg.GRPC, log); err != nil {
		return err
	}
	if o.tcp, err = net.Listen("tcp", cfg.GRPC.Listen); err != nil {
		return errs.New(errs.ConfigInvalid, "grpc.listen", "choose a free address of this machine",
			"listen for gRPC on %s", cfg.GRPC.Listen).Because(err)
	}
	return nil
}

func (o *doors) socket() string { return o.unix.Path() }

// restore binds the socket again if somebody has removed its file. It logs why it cannot, unless that is what was said
// last, and returns it.
func (o *doors) restore(said string, log *slog.Logger) string {
	again, err := o.unix.Restore()
	switch {
	case err != nil:
		if text := err.Error(); text != said {
			said = text
			log.Error("the socket was removed and cannot be bound again: no client finds the daemon", "socket", o.socket(),
				"error", err)
		}
		return said
	case again:
		log.Warn("the socket had been removed, and is bound again", "socket", o.socket())
	}
	return ""
}

// grpc is the TCP address of gRPC, "" when it is off.
func (o *doors) grpc() string {
	if o.tcp == nil {
		return ""
	}
	return o.tcp.Addr().String()
}

// closeTCP closes the TCP listener, where its server has not done so already.
func (o *doors) closeTCP() {
	if o.tcp != nil {
		_ = o.tcp.Close()
	}
}

func (o *doors) closeUnix() error {
	if o.unix == nil {
		return nil
	}
	return o.unix.Close()
}

// described lists the addresses and who may use each; nil before describe.
func (o *doors) described() []*larderv1.Listener {
	if l := o.shown.Load(); l != nil {
		return *l
	}
	return nil
}

// describe makes that list when all are open; http is the address of the metrics, "" when they are off.
func (o *doors) describe(cfg *config.Config, http string) {
	unix := &larderv1.Listener{
		Address: o.socket(), Serves: "sessions and gRPC", Admits: fmt.Sprintf("uid %d and root", os.Getuid()), Guarded: true,
	}
	if g := cfg.SocketGroup; g != "" {
		unix.Admits = fmt.Sprintf("uid %d, root and group %s", os.Getuid(), g)
	}
	list := []*larderv1.Listener{unix}
	if addr := o.grpc(); addr != "" {
		list = append(list, &larderv1.Listener{
			Address: addr, Serves: "gRPC", Admits: admitted(cfg.GRPC), Remote: !config.Loopback(addr), Guarded: true,
		})
	}
	if http != "" {
		remote := !config.Loopback(http)
		who := "every user of this machine"
		if remote {
			who = "everybody whose machine reaches it"
		}
		list = append(list, &larderv1.Listener{Address: http, Serves: "HTTP", Admits: who +
			"; read-only; shows names of jobs and datasets", Remote: remote})
	}
	o.shown.Store(&list)
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
