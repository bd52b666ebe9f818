package pki

import (
	"crypto/x509"
	"os"
	"testing"
	"time"
)

var leaves = []Leaf{
	{Name: "server", Common: "server", Hosts: []string{"kubernetes.default", "10.96.0.1"}},
	{Name: "client", Common: "admin", Groups: []string{"system:masters"}},
}

func made(t *testing.T, f Folder, leaves []Leaf) map[string]string {
	t.Helper()
	if err := f.Ensure(leaves); err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, l := range append(leaves, Leaf{Name: "ca"}) {
		text, err := os.ReadFile(f.Cert(l.Name))
		if err != nil {
			t.Fatal(err)
		}
		content[l.Name] = string(text)
	}
	return content
}

func TestCertificatesAreGoodForWhatTheyAreFor(t *testing.T) {
	f := Folder{Dir: t.TempDir(), Now: time.Now}
	made(t, f, leaves)
	ca, err := readCert(f.Cert("ca"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	verify := func(name, host string, usage x509.ExtKeyUsage) error {
		cert, err := readCert(f.Cert(name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	for _, host := range []string{"kubernetes.default", "10.96.0.1"} {
		if err := verify("server", host, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("server as %s: %v", host, err)
		}
	}
	if verify("server", "elsewhere", x509.ExtKeyUsageServerAuth) == nil {
		t.Error("the server's certificate is good for any name")
	}
	if err := verify("client", "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("client: %v", err)
	}
	if verify("client", "", x509.ExtKeyUsageServerAuth) == nil {
		t.Error("a client's certificate can serve")
	}
	for _, key := range []string{"ca", "server", "client", "service-account"} {
		info, err := os.Stat(f.Key(key))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key %s: %v, %v; only root may read it", key, info.Mode(), err)
		}
	}
}

func TestEnsureKeepsWhatIsGood(t *testing.T) {
	now := time.Now()
	f := Folder{Dir: t.TempDir(), Now: func() time.Time { return now }}
	before := made(t, f, leaves)

	for name, c := range map[string]struct {
		change  func() []Leaf
		renewed []string
	}{
		"nothing changed": {func() []Leaf { return leaves }, nil},
		"another host": {func() []Leaf {
			return []Leaf{{Name: "server", Common: "server", Hosts: []string{"10.97.0.1"}}, leaves[1]}
		}, []string{"server"}},
		"another group":    {func() []Leaf { return []Leaf{leaves[0], {Name: "client", Common: "admin"}} }, []string{"client"}},
		"close to the end": {func() []Leaf { now = now.Add(validity * 4 / 5); return leaves }, []string{"ca", "server", "client"}},
	} {
		if name == "close to the end" {
			continue // changes the clock for the others, see below
		}
		check(t, f, name, before, c.change(), c.renewed)
		before = made(t, f, leaves)
	}
	now = now.Add(validity * 4 / 5)
	check(t, f, "close to the end", before, leaves, []string{"ca", "server", "client"})
}

func check(t *testing.T, f Folder, name string, before map[string]string, leaves []Leaf, renewed []string) {
	t.Helper()
	after := made(t, f, leaves)
	want := map[string]bool{}
	for _, r := range renewed {
		want[r] = true
	}
	for n := range before {
		if (before[n] != after[n]) != want[n] {
			t.Errorf("%s: certificate %s renewed: %v, want %v", name, n, before[n] != after[n], want[n])
		}
	}
}

func TestADamagedFileIsReplaced(t *testing.T) {
	f := Folder{Dir: t.TempDir(), Now: time.Now}
	made(t, f, leaves)
	for _, file := range []string{f.Key("client"), f.Cert("client"), f.Key("service-account"), f.Cert("ca")} {
		if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
		made(t, f, leaves)
		if text, _ := os.ReadFile(file); string(text) == "garbage" {
			t.Errorf("%s is still damaged", file)
		}
	}
}
