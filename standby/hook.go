package standby

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a hook.
const (
	DefaultHookTime = time.Second
	MaxHookTime     = time.Minute
	// maxHookPath leaves room in maxHookText for all else that String writes.
	maxHookPath, maxHookText = 1000, 1100
)

// Hook is an HTTP call to the program, before it sleeps or after it woke.
type Hook struct {
	Method string
	Port   int // 0 is the user container's
	Path   string
	Bound  time.Duration // of the call
}

var hookMethods = []string{"GET", "POST", "PUT"}

// ParseHook reads [METHOD] [:PORT]PATH [BOUND], such as "POST :8000/sleep?level=1 5s".
func ParseHook(text string) (Hook, error) {
	h := Hook{Method: "POST", Bound: DefaultHookTime}
	words := strings.Fields(text)
	if len(words) > 0 && slices.Contains(hookMethods, words[0]) {
		h.Method, words = words[0], words[1:]
	}
	if len(words) == 0 || len(words) > 2 || len(text) > maxHookText {
		return Hook{}, errors.New("want [METHOD] [:PORT]/PATH [BOUND], such as POST :8000/sleep 5s")
	}
	path := words[0]
	if rest, ported := strings.CutPrefix(path, ":"); ported {
		number := rest
		if slash := strings.IndexByte(rest, '/'); slash >= 0 {
			number = rest[:slash]
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || port == 0 {
			return Hook{}, fmt.Errorf("port %.20q is not a number from 1 to 65535", number)
		}
		h.Port, path = int(port), rest[len(number):]
	}
	if len(path) > maxHookPath {
		return Hook{}, fmt.Errorf("a path of %d bytes is longer than %d", len(path), maxHookPath)
	}
	if _, err := url.ParseRequestURI(path); err != nil || !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }) {
		return Hook{}, fmt.Errorf("%.40q is neither %s nor a path such as /sleep, of printable ASCII", words[0], strings.Join(hookMethods, ", "))
	}
	h.Path = path
	if len(words) == 2 {
		bound, err := time.ParseDuration(words[1])
		if err != nil || bound < time.Millisecond || bound > MaxHookTime {
			return Hook{}, fmt.Errorf("bound %.20q is not a duration from 1ms to %s", words[1], MaxHookTime)
		}
		h.Bound = bound
	}
	return h, nil
}

// String returns what ParseHook reads.
func (h Hook) String() string {
	port := ""
	if h.Port != 0 {
		port = ":" + strconv.Itoa(h.Port)
	}
	return h.Method + " " + port + h.Path + " " + h.Bound.String()
}
