// Command argocd says what Argo CD's own check of health says of Services: it reads a JSON list of
// objects from standard input, and writes a JSON list of verdicts. It is a module of its own,
// because Argo CD's dependencies must not become Ebb's.
//
// Owns: nothing. Reads: standard input, and the script in Argo CD's module. Writes: standard
// output. Never: judges; the script does.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	customizations "github.com/argoproj/argo-cd/v3/resource_customizations"
	lua "github.com/yuin/gopher-lua"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "argocd:", err)
		os.Exit(1)
	}
}

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func run(in io.Reader, out io.Writer) error {
	script, err := customizations.Embedded.ReadFile("serving.knative.dev/Service/health.lua")
	if err != nil {
		return err
	}
	var objects []any
	if err := json.NewDecoder(in).Decode(&objects); err != nil {
		return fmt.Errorf("read the objects: %w", err)
	}
	verdicts := []verdict{}
	for _, object := range objects {
		v, err := judge(string(script), object)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, v)
	}
	return json.NewEncoder(out).Encode(verdicts)
}

// judge runs the script as Argo CD does: the object is the variable obj, the answer a table.
func judge(script string, object any) (verdict, error) {
	l := lua.NewState()
	defer l.Close()
	l.SetGlobal("obj", value(l, object))
	if err := l.DoString(script); err != nil {
		return verdict{}, err
	}
	answer, is := l.Get(-1).(*lua.LTable)
	if !is {
		return verdict{}, fmt.Errorf("the script returns a %s", l.Get(-1).Type())
	}
	return verdict{lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message"))}, nil
}

// value turns decoded JSON into Lua's values.
func value(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		table := l.NewTable()
		for _, one := range v {
			table.Append(value(l, one))
		}
		return table
	case map[string]any:
		table := l.NewTable()
		for key, one := range v {
			table.RawSetString(key, value(l, one))
		}
		return table
	}
	return lua.LNil
}
