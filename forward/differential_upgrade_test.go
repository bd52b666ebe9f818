package forward

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// switched is a backend that changes to a protocol of lines if its path says so: each comes back
// with its length.
func switched(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	saw := fmt.Sprintf("%s %s upgrade=%q connection=%q body=%q settings=%q", r.Method, r.Host, r.Header["Upgrade"], r.Header["Connection"], body, r.Header["Http2-Settings"])
	protocol := r.Header.Get("Upgrade")
	switch r.URL.Path {
	case "/refuses":
		w.Header()["Date"] = nil
		w.Header().Set("X-Saw", saw)
		http.Error(w, "not today", http.StatusForbidden)
		return
	case "/switches":
		protocol = r.URL.Query().Get("to")
	}
	fields := ""
	for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": protocol} {
		if name != r.URL.Query().Get("without") {
			fields += name + ": " + value + "\r\n"
		}
	}
	conn, b, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(b, "HTTP/1.1 101 Switching Protocols\r\n%sX-Saw: %s\r\n\r\n", fields, saw)
	switch r.URL.Path {
	case "/ends":
		b.Flush()
		return
	case "/talks-first":
		b.WriteString("welcome\n") // in one segment with the head
	}
	b.Flush()
	for {
		line, err := b.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprintf(b, "%d %s", len(line), line)
		b.Flush()
		if line == "bye\n" {
			return
		}
	}
}

func TestAgreesWithTheStandardReverseProxyOnUpgrades(t *testing.T) {
	p := proxies(t, switched)
	const upgrade = "Connection: Upgrade\r\nUpgrade: lines\r\n"
	long := strings.Repeat("long ", 40000) + "\n"
	for name, c := range map[string]struct {
		head string
		with string   // sent in one piece with the head
		then []string // sent one after the other, each when the last was answered
	}{
		"lines":                          {head: "GET / HTTP/1.1\r\n" + fieldsOf + upgrade, then: []string{"one\n", "two\n", "bye\n"}},
		"the backend talks first":        {head: "GET /talks-first HTTP/1.1\r\n" + fieldsOf + upgrade, then: []string{"", "one\n", "bye\n"}},
		"much":                           {head: "GET / HTTP/1.1\r\n" + fieldsOf + upgrade, then: []string{long, long, "bye\n"}},
		"the backend ends it at once":    {head: "GET /ends HTTP/1.1\r\n" + fieldsOf + upgrade},
		"among other options":            {head: "GET / HTTP/1.1\r\n" + fieldsOf + "Connection: keep-alive, Upgrade\r\nUpgrade: lines\r\n", then: []string{"bye\n"}},
		"in capitals":                    {head: "GET / HTTP/1.1\r\n" + fieldsOf + "CONNECTION: UPGRADE\r\nUPGRADE: Lines\r\n", then: []string{"bye\n"}},
		"a body comes first":             {head: "POST / HTTP/1.1\r\n" + fieldsOf + upgrade + "Content-Length: 5\r\n", with: "hello", then: []string{"bye\n"}},
		"the backend refuses":            {head: "GET /refuses HTTP/1.1\r\n" + fieldsOf + upgrade},
		"nobody asked":                   {head: "GET /switches?to=lines HTTP/1.1\r\n" + fieldsOf},
		"Upgrade is not meant":           {head: "GET /switches?to=lines HTTP/1.1\r\n" + fieldsOf + "Upgrade: lines\r\n"},
		"Connection without a meaning":   {head: "GET /switches?to=lines HTTP/1.1\r\n" + fieldsOf + "Connection: Upgrade\r\n"},
		"to another protocol":            {head: "GET /switches?to=other HTTP/1.1\r\n" + fieldsOf + upgrade},
		"to one of another version":      {head: "GET /switches?to=lines/2 HTTP/1.1\r\n" + fieldsOf + upgrade},
		"to one in other letters":        {head: "GET /switches?to=LINES HTTP/1.1\r\n" + fieldsOf + upgrade, then: []string{"bye\n"}},
		"to one of the asked version":    {head: "GET /switches?to=Lines/2 HTTP/1.1\r\n" + fieldsOf + "Connection: Upgrade\r\nUpgrade: lines/2\r\n", then: []string{"bye\n"}},
		"to more than was asked for":     {head: "GET /switches?to=lines,other HTTP/1.1\r\n" + fieldsOf + upgrade},
		"to none":                        {head: "GET /switches?to= HTTP/1.1\r\n" + fieldsOf + upgrade},
		"it does not say to which":       {head: "GET /switches?without=Upgrade HTTP/1.1\r\n" + fieldsOf + upgrade},
		"Upgrade not in its Connection":  {head: "GET /switches?to=lines&without=Connection HTTP/1.1\r\n" + fieldsOf + upgrade},
		"an Upgrade that is not meant":   {head: "GET /refuses HTTP/1.1\r\n" + fieldsOf + "Upgrade: lines\r\n"},
		"a Connection without a meaning": {head: "GET /refuses HTTP/1.1\r\n" + fieldsOf + "Connection: Upgrade\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var transcripts [2][]string
			for i, address := range []string{p.ours, p.theirs} {
				conn := dialTo(t, address)
				r := bufio.NewReader(conn)
				io.WriteString(conn, c.head+"\r\n"+c.with)
				response, err := http.ReadResponse(r, &http.Request{Method: methodOf(c.head)})
				if err != nil {
					t.Fatalf("%s: %v", address, err)
				}
				say := func(format string, a ...any) { transcripts[i] = append(transcripts[i], fmt.Sprintf(format, a...)) }
				say("%d %q %q", response.StatusCode, response.Header["Upgrade"], response.Header["X-Saw"])
				if response.StatusCode != 101 {
					body, err := io.ReadAll(response.Body)
					if response.StatusCode != 502 {
						say("%q %v", body, err)
					}
					if i == 0 && strings.Contains(c.head, upgrade) && !response.Close { // the forwarder's: what follows may be of the other protocol
						t.Errorf("%s: the connection goes on after a refused upgrade", address)
					}
					continue
				}
				for _, line := range c.then {
					go io.WriteString(conn, line)
					answer, err := r.ReadString('\n')
					say("%q %v", answer, err)
				}
				rest, err := io.ReadAll(r)
				say("%q %v", rest, err)
			}
			compare(t, "", transcripts[0], transcripts[1])
		})
	}
}

// Bytes of the new protocol that come before its 101 are not lost; net/http's forwarder loses them.
func TestAnUpgradingClientNeedNotWait(t *testing.T) {
	p := proxies(t, switched)
	c := dialTo(t, p.ours)
	io.WriteString(c, "GET / HTTP/1.1\r\n"+fieldsOf+"Connection: Upgrade\r\nUpgrade: lines\r\n\r\nearly\nbye\n")
	r := bufio.NewReader(c)
	if response, err := http.ReadResponse(r, nil); err != nil || response.StatusCode != 101 {
		t.Fatalf("got %v, %v", response, err)
	}
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "6 early\n4 bye\n" {
		t.Errorf("got %q, %v", rest, err)
	}
}
