package rpc

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// Dial is DialWith without a token and with the machine's certificates.
func Dial(ctx context.Context, target string, opts ...grpc.DialOption) (larderv1.LarderServiceClient, io.Closer,
	error) {
	return DialWith(ctx, target, Access{}, opts...)
}

// DialWith connects to a daemon and waits until the connection stands, or ctx ends. The target is the path of a Unix
// socket (anything with a slash), for which access is not looked at, or host:port; TCP is spoken in the clear only with
// a loopback address for which access names no file of TLS; opts may say otherwise. Errors of the client's calls are
// *errs.Error. Close the closer when done.
func DialWith(ctx context.Context, target string, access Access, opts ...grpc.DialOption) (larderv1.LarderServiceClient,
	io.Closer, error) {
	d := &dialer{target: target, network: "unix", address: strings.TrimPrefix(target, "unix:")}
	creds := insecure.NewCredentials()
	if !strings.HasPrefix(target, "unix:") && !strings.Contains(target, "/") {
		d.network, d.address = "tcp", target
		if _, _, err := net.SplitHostPort(target); err != nil {
			hint := "give the path of a socket, or host:port"
			if target != "" && !strings.Contains(target, ":") {
				hint = "give host:port, or the path of a socket with a slash: ./" + target
			}
			return nil, nil, errs.New(errs.Invalid, target, hint, "%q is neither the path of a socket nor host:port", target)
		}
		var err error
		if creds, opts, err = access.over(d, target, opts); err != nil {
			return nil, nil, err
		}
	}
	if d.address == "" {
		return nil, nil, errs.New(errs.Invalid, target, "give the path of a socket, or host:port",
			"there is no address to connect to")
	}
	all := append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(d.dial),
		grpc.WithAuthority(authority(d)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(d.unary),
		grpc.WithStreamInterceptor(d.stream),
		grpc.WithDisableServiceConfig(),
	}, opts...)
	cc, err := grpc.NewClient("passthrough:///"+d.address, all...)
	if err != nil {
		return nil, nil, errs.New(errs.Invalid, target, "give the path of a socket, or host:port",
			"connect to the daemon").Because(err)
	}
	cc.Connect()
	for {
		s := cc.GetState()
		switch s {
		case connectivity.Ready:
			return larderv1.NewLarderServiceClient(cc), cc, nil
		case connectivity.TransientFailure:
			_ = cc.Close()
			return nil, nil, d.failure(nil)
		case connectivity.Idle:
			cc.Connect()
		default:
		}
		if !cc.WaitForStateChange(ctx, s) {
			_ = cc.Close()
			return nil, nil, d.failure(context.Cause(ctx))
		}
	}
}

func authority(d *dialer) string {
	if d.network == "unix" {
		return "localhost"
	}
	return d.address
}

// dialer connects and remembers what went wrong, because gRPC reports it only as text.
type dialer struct {
	target, network, address string
	mu                       struct {
		sync.Mutex
		err error
		tls error // what went wrong with TLS last
		met bool  // TLS agreed with the daemon once
	}
}

func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, d.network, d.address)
	if err != nil && ctx.Err() != nil {
		return nil, err // given up by us: it says nothing about the daemon
	}
	d.mu.Lock()
	d.mu.err = err
	d.mu.Unlock()
	return c, err
}

// failure says in words why there is no connection.
func (d *dialer) failure(cause error) error {
	d.mu.Lock()
	err, secure, met := d.mu.err, d.mu.tls, d.mu.met
	d.mu.Unlock()
	where := d.target
	switch {
	case err == nil && secure != nil:
		return errs.New(errs.Unavailable, where, hintTLS(secure), "no secure connection to the daemon at %s", where).
			Because(secure)
	case errors.Is(err, fs.ErrPermission):
		return errs.New(errs.Denied, where, "a daemon serves its own user, root and the members of its socket_group; "+
			"run as one of them, or start your own: larder serve",
			"no right to speak to the daemon at %s", where)
	case d.network == "unix" && errors.Is(err, fs.ErrNotExist):
		return errs.New(errs.Unavailable, where,
			"start one with: larder serve; or name its socket with --socket or LARDER_SOCKET",
			"no daemon runs at %s", where)
	case errors.Is(err, syscall.ECONNREFUSED):
		return errs.New(errs.Unavailable, where, "start one with: larder serve", "no daemon listens at %s any more", where)
	case err != nil:
		return errs.New(errs.Unavailable, where, "is the daemon running? larder doctor looks at its socket",
			"connect to the daemon at %s", where).Because(err)
	case cause != nil:
		return errs.New(errs.Unavailable, where, "larder doctor looks at its socket",
			"the daemon at %s does not answer", where).Because(cause)
	case met: // TLS 1.3 refuses a certificate after the handshake, and its word may be lost with the connection
		return errs.New(errs.Unavailable, where, hintCert, "the daemon at %s ended the connection right after the TLS "+
			"handshake: it may want a certificate, or another one", where)
	case d.network == "tcp":
		return errs.New(errs.Unavailable, where,
			"does it speak TLS? then name the authority of its certificate with --tls-ca or LARDER_TLS_CA",
			"what listens at %s closed the connection", where)
	default:
		return errs.New(errs.Unavailable, where,
			"it serves its own user, root and the members of its socket_group; larder doctor looks at its socket",
			"what listens at %s closed the connection", where)
	}
}

// fault puts the words of a failed connection in the place of gRPC's.
func (d *dialer) fault(err error) error {
	if st, ok := status.FromError(err); ok && st.Code() == codes.Unavailable && len(st.Details()) == 0 {
		return d.lost()
	}
	return Fault(err)
}

func (d *dialer) lost() error {
	d.mu.Lock()
	err := errors.Join(d.mu.err, d.mu.tls)
	d.mu.Unlock()
	if err != nil {
		return d.failure(nil)
	}
	return errs.New(errs.Unavailable, d.target, "start it again with: larder serve", "the daemon at %s went away",
		d.target)
}

func (d *dialer) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	if err := call(ctx, method, req, reply, cc, opts...); err != nil {
		return d.fault(err)
	}
	return nil
}

func (d *dialer) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, d.fault(err)
	}
	return clientStream{s, d}, nil
}

type clientStream struct {
	grpc.ClientStream
	d *dialer
}

func (s clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return s.d.fault(err)
}
