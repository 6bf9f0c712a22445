"""How texts become token ids where a model's own files say so: engine and router must read them alike.

Apart from the rest of the contract, which needs neither a template engine nor files.
"""
