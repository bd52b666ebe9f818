package standby

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Version is the version of the protocol. Peers of different versions do not talk.
const Version = 1

// Port is where queue-proxy takes the connection of its node's agent.
const Port = 8023

// Containers is the annotation of a pod that names the containers that may be frozen, separated by
// commas. A pod without it never is.
const Containers = "autoscaling.ebb.dev/standby-containers"

// MaxLine bounds the length of a message, its line feed included.
const MaxLine = 256

// Level is how deeply a pod sleeps.
type Level uint8

// The levels, from the lightest.
const (
	Warm       Level = iota // idle: not in any EndpointSlice, the user containers run
	Frozen                  // the user containers get no CPU
	Compressed              // frozen, and their memory is in swap
)

var levelNames = [...]string{"warm", "frozen", "compressed"}

func (l Level) String() string { return levelNames[l] }

// ParseLevel reads the name of a level.
func ParseLevel(name string) (Level, error) {
	for i, n := range levelNames {
		if n == name {
			return Level(i), nil
		}
	}
	return 0, fmt.Errorf("%q is not one of %s", name, strings.Join(levelNames[:], ", "))
}

// Verb is the kind of a message.
type Verb uint8

// The verbs.
const (
	Hello  Verb = iota // both sides, first: Number is the Version, Text the UID of the pod
	Freeze             // to the agent: freeze to Level, unless Expires has passed
	Thaw               // to the agent
	Froze              // to the pod: order Number is done, to Level, perhaps not as deep as ordered
	Thawed             // to the pod: order Number is done
	Failed             // to the pod: Freeze Number is not done, the containers run; Text says why
)

var verbNames = [...]string{"hello", "freeze", "thaw", "froze", "thawed", "failed"}

func (v Verb) String() string { return verbNames[v] }

// Message is one line of the protocol. Its fields are set as the Verb says.
type Message struct {
	Verb   Verb
	Number uint64 // grows with each order of a pod
	Level  Level
	// Expires is on the clock of the node, as time since boot.
	Expires time.Duration
	Text    string
}

// Append appends m as a line.
func (m Message) Append(b []byte) []byte {
	b = append(b, m.Verb.String()...)
	b = append(b, ' ')
	b = strconv.AppendUint(b, m.Number, 10)
	switch m.Verb {
	case Froze:
		b = append(b, ' ')
		b = append(b, m.Level.String()...)
	case Freeze:
		b = append(b, ' ')
		b = append(b, m.Level.String()...)
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(m.Expires), 10)
	case Hello, Failed:
		text := strings.Map(printable, m.Text)
		if room := MaxLine - len(b) - 2; len(text) > room {
			text = text[:room]
		}
		if text != "" {
			b = append(b, ' ')
			b = append(b, text...)
		}
	}
	return append(b, '\n')
}

func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '?'
	}
	return r
}

// Parse reads a line, without its line feed.
func Parse(line string) (Message, error) {
	if len(line) >= MaxLine {
		return Message{}, fmt.Errorf("a message of %d bytes is longer than %d", len(line), MaxLine-1)
	}
	name, rest, _ := strings.Cut(line, " ")
	number, rest, hasRest := strings.Cut(rest, " ")
	m := Message{}
	known := false
	for i, n := range verbNames {
		if n == name {
			m.Verb, known = Verb(i), true
		}
	}
	if !known {
		return Message{}, fmt.Errorf("unknown message %q", name)
	}
	var err error
	if m.Number, err = strconv.ParseUint(number, 10, 64); err != nil {
		return Message{}, fmt.Errorf("%s: number %q is not a number", name, number)
	}
	switch m.Verb {
	case Freeze, Froze:
		level, expires, _ := strings.Cut(rest, " ")
		if m.Level, err = ParseLevel(level); err != nil {
			return Message{}, fmt.Errorf("%s: level: %w", m.Verb, err)
		}
		if m.Level == Warm {
			return Message{}, fmt.Errorf("%s: level warm needs no agent", m.Verb)
		}
		if m.Verb == Froze {
			if expires != "" {
				return Message{}, fmt.Errorf("froze: unexpected %q", expires)
			}
			break
		}
		at, err := strconv.ParseInt(expires, 10, 64)
		if err != nil || at < 0 {
			return Message{}, fmt.Errorf("freeze: expiry %q is not a time since boot in nanoseconds", expires)
		}
		m.Expires = time.Duration(at)
	case Hello, Failed:
		m.Text = rest
	default:
		if hasRest {
			return Message{}, fmt.Errorf("%s: unexpected %q", name, rest)
		}
	}
	return m, nil
}
