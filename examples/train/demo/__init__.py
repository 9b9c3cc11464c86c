"""A real model of half a billion parameters learns one-command tasks: llama.cpp samples, peft learns."""
