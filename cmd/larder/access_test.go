package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// certs DIR: makes the authorities ca and other-ca, and certificates server and client of ca, stranger of other-ca.
func cmdCerts(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	write := func(name, kind string, der []byte) {
		ts.Check(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	serial := int64(0)
	issue := func(name string, by *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		ts.Check(err)
		serial++
		c := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		}
		if by == nil {
			by, key = c, own
			c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by, &own.PublicKey, key)
		ts.Check(err)
		write(name+".pem", "CERTIFICATE", der)
		k, err := x509.MarshalECPrivateKey(own)
		ts.Check(err)
		write(name+".key", "EC PRIVATE KEY", k)
		return c, own
	}
	ca, caKey := issue("ca", nil, nil)
	other, otherKey := issue("other-ca", nil, nil)
	issue("server", ca, caKey)
	issue("client", ca, caKey)
	issue("stranger", other, otherKey)
}
