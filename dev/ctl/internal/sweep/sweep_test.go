package sweep

import (
	"slices"
	"strings"
	"testing"
)

func TestBelowFindsOnlyOurMountsInnermostFirst(t *testing.T) {
	const mountinfo = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:30 / /root/ebb/.dev/kubelet/pods/a/volumes/x rw - tmpfs tmpfs rw
31 30 0:31 / /root/ebb/.dev/kubelet/pods/a/volumes/x/y rw - tmpfs tmpfs rw
32 22 0:32 / /root/ebb/.device rw - tmpfs tmpfs rw
33 22 0:33 / /run/ebb-dev/containerd/with\040space rw - nsfs nsfs rw
34 22 0:34 / /run/ebb-dev rw - tmpfs tmpfs rw
`
	got, err := below(strings.NewReader(mountinfo), []string{"/run/ebb-dev", "/root/ebb/.dev"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/run/ebb-dev/containerd/with space",
		"/root/ebb/.dev/kubelet/pods/a/volumes/x/y",
		"/root/ebb/.dev/kubelet/pods/a/volumes/x",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestOnlyAShimOfOurSocketIsOurs(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want bool
	}{
		"ours":                  {[]string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", "/run/ebb-dev/containerd.sock"}, true},
		"of another containerd": {[]string{"/usr/bin/containerd-shim-runc-v2", "-address", "/run/containerd/containerd.sock"}, false},
		"no shim":               {[]string{"/usr/bin/ctr", "-address", "/run/ebb-dev/containerd.sock"}, false},
		"cut short":             {[]string{"/usr/bin/containerd-shim-runc-v2", "-address"}, false},
		"a kernel thread":       {[]string{""}, false},
	} {
		if got := isShim(c.args, "/run/ebb-dev/containerd.sock"); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestContainersWithoutAnyIsNoError(t *testing.T) {
	if n, err := Containers(t.TempDir(), "/run/ebb-dev/never.sock"); n != 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}
