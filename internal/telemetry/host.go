package telemetry

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// named answers requests for a host of this daemon alone. A page of the web can let its own name mean 127.0.0.1: then
// the browser of a user takes what the daemon answers for that page's own, and lets it read.
func named(hosts []string, next http.Handler) http.Handler {
	own := []string{"localhost", "127.0.0.1", "::1"}
	for _, h := range hosts {
		own = append(own, plainHost(h))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := plainHost(r.Host)
		if host == "" || slices.Contains(own, host) || host == reached(r) { // none: HTTP/1.0, and no browser
			next.ServeHTTP(w, r)
			return
		}
		plain(w, http.StatusMisdirectedRequest, fmt.Sprintf(
			"larder does not answer to the host name %.300q. Ask for localhost or for the address that it listens on, or add "+
				"the name to http_hosts in the configuration", host))
	})
}

// reached is the address of this machine that the request came to; "" where that is not known.
func reached(r *http.Request) string {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return plainHost(a.IP.String())
	}
	return ""
}

// plainHost is a host, as it may be written in a request, in the one form that hosts are compared in.
func plainHost(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), "."))
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap().WithZone("").String()
	}
	return s
}
